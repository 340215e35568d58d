# Debian packages: installed when we may, named when we may not.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Started by their packages, or enabled for the next boot; neither is wanted, since we run servers of our own.
package_units=(rabbitmq-server prometheus prometheus-node-exporter epmd.socket epmd.service)

install_packages() { # install_packages PACKAGE…
  (($# > 0)) || return 0
  if ! have apt-get; then
    die packages "missing: $*. These are Debian's names; install them by your package manager, or use: docker compose up"
  elif ((EUID != 0)); then
    die packages "missing: $*. Install them as root: apt-get install --no-install-recommends $*"
  fi
  local start
  start=$(now_ms)
  say packages "installing $* (apt-get)…"
  apt_get update || warn packages "apt-get update failed, trying with the lists at hand"
  without_autostart apt_get install --no-install-recommends "$@" || die packages "apt-get failed"
  say packages "installed in $(since "$start")"
}

apt_get() {
  DEBIAN_FRONTEND=noninteractive quietly packages "$logs/install-packages.log" \
    apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@"
}

# Runs a command while Debian's policy hook forbids packages to start services; then disables what was enabled for boot.
without_autostart() {
  local policy=/usr/sbin/policy-rc.d result=0 unit before
  before=$(enabled_units)
  if [[ -e $policy ]]; then
    "$@" || result=$?
  else
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    # shellcheck disable=SC2064 # the path is known now
    trap "rm -f $policy" EXIT
    "$@" || result=$?
    rm -f "$policy"
    trap - EXIT
  fi
  for unit in $(enabled_units); do
    # What the user had enabled before stays.
    [[ " $before " == *" $unit "* ]] || systemctl --quiet disable "$unit" || true
  done
  return "$result"
}

enabled_units() {
  local unit enabled=()
  if have systemctl; then
    for unit in "${package_units[@]}"; do
      systemctl --quiet is-enabled "$unit" 2>/dev/null && enabled+=("$unit")
    done
  fi
  echo "${enabled[*]}"
}
