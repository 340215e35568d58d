# Helm, kubeconform, and the schemas that they check the chart against: those of Kubernetes and of the operators' kinds.
# Only installed. Their binaries cannot be downloaded everywhere, so the two are built from the Go modules. The
# checksums of these modules are pinned here; Go's checksum database covers their dependencies.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Named by the pins, so that new ones make a new folder.
helm_dir=$cache/helm-$(printf '%s\n' "$HELM_MODULE" "$KUBECONFORM_MODULE" "$KUBERNETES_SCHEMAS_WHEEL" \
  "$KUBERNETES_SCHEMAS" "$PROMETHEUS_OPERATOR_MODULE" "$KEDA_MODULE" | sha256sum | cut -c 1-12)

helm_packages() { [[ -d $helm_dir ]] || { go_packages && wheel_packages; }; }

# Go with all its files in one folder, which is removed after the build.
helm_go() {
  env GOTOOLCHAIN=local GOFLAGS=-modcacherw GOPATH="$helm_dir.part/go" GOCACHE="$helm_dir.part/go-cache" \
    GOBIN="$helm_dir.part" "$(go_binary)" "$@"
}

# Fetches a module, and prints its folder; fails if its checksum is not the pinned one.
helm_module() { # helm_module MODULE SUM
  local answer sum
  answer=$(helm_go mod download -json "$1") || return 1
  sum=$(sed -n 's/^\t"Sum": "\(.*\)",\{0,1\}$/\1/p' <<<"$answer")
  # Reading versions.env cuts a "=" at the end.
  [[ ${sum%=} == "${2%=}" ]] || {
    echo "the checksum of $1 is not $2" >&2
    return 1
  }
  sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$answer"
}

helm_build() { # helm_build MODULE SUM COMMAND
  helm_module "$1" "$2" && helm_go install -trimpath -ldflags='-s -w' "${1%@*}/cmd/$3@${1#*@}"
}

helm_crds() {
  local folder
  mkdir -p "$helm_dir.part/crds"
  folder=$(helm_module "$PROMETHEUS_OPERATOR_MODULE" "$PROMETHEUS_OPERATOR_SUM") || return 1
  cp "$folder"/example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml \
    "$helm_dir.part/crds"
  folder=$(helm_module "$KEDA_MODULE" "$KEDA_SUM") || return 1
  cp "$folder"/config/crd/bases/keda.sh_scaledobjects.yaml "$helm_dir.part/crds"
}

# One folder of JSON schemas for each version of Kubernetes.
helm_schemas() {
  local wheel=$helm_dir.part/wheel version
  fetch_wheel helm "$KUBERNETES_SCHEMAS_WHEEL" "$KUBERNETES_SCHEMAS_WHEEL_SHA256" "$KUBERNETES_SCHEMAS_WHEEL_SHA256" \
    "$wheel" || return 1
  mkdir -p "$helm_dir.part/schemas"
  for version in $KUBERNETES_SCHEMAS; do
    mv "$wheel/kubernetes_validate/kubernetes-json-schema/v$version-local-strict" "$helm_dir.part/schemas/v$version" ||
      return 1
  done
  # The schemas refer to each other by that package's paths; here they are in one folder.
  # shellcheck disable=SC2016 # the names begin so
  sed -i 's|"/api/_definitions.json#|"_definitions.json#|; s|"$id": "https|"x-id": "https|' \
    "$helm_dir.part"/schemas/*/*.json
  rm -rf "$wheel"
}

helm_install() {
  [[ ! -d $helm_dir ]] || return 0
  install_one go
  local start part=$helm_dir.part log=$logs/install-helm.log
  start=$(now_ms)
  rm -rf "$part" && mkdir -p "$part"
  say helm "fetching schemas, building helm and kubeconform; takes some minutes…"
  helm_schemas || die helm "the schemas of Kubernetes could not be fetched; pip must reach its index"
  if ! { quietly helm "$log" helm_crds && quietly helm "$log" helm_build "$KUBECONFORM_MODULE" "$KUBECONFORM_SUM" kubeconform &&
    quietly helm "$log" helm_build "$HELM_MODULE" "$HELM_SUM" helm; }; then
    die helm "they could not be built; Go must reach its module proxy"
  fi
  rm -rf "$part"/go "$part"/go-cache && mv "$part" "$helm_dir"
  say helm "installed in $(since "$start")"
}

# Holds helm, kubeconform, schemas/ and crds/.
helm_env() { [[ ! -d $helm_dir ]] || export_line POSTRIDER_TEST_HELM_HOME "$helm_dir"; }
