# schemathesis, which checks the HTTP API against its own description: a Python with its packages, only installed.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

schemathesis_requirements=$repo/scripts/services/schemathesis/requirements.txt
schemathesis_dir=$cache/schemathesis-$(sha256sum "$schemathesis_requirements" | cut -c 1-12)

# Prints the command that runs its Python.
schemathesis_binary() { [[ -x $schemathesis_dir/python ]] && echo "$schemathesis_dir/python"; }

schemathesis_packages() { schemathesis_binary >/dev/null || wheel_packages; }

schemathesis_install() {
  schemathesis_binary >/dev/null && return
  install_python schemathesis "$schemathesis_requirements" "$schemathesis_dir" 'import schemathesis.cli'
}

schemathesis_env() { export_line POSTRIDER_TEST_SCHEMATHESIS "$(schemathesis_binary || true)"; }
