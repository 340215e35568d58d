# Debian packages: installed with the necessary rights, otherwise named in an error.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

# Services that these packages start, and enable for the next boot. The tests run servers of their own instead.
package_services=(rabbitmq-server prometheus epmd)

install_packages() { # install_packages PACKAGE…
  (($# > 0)) || return 0
  if ! have apt-get; then
    die packages "missing: $*. These are Debian's names; install them by your package manager, or use: docker compose up"
  elif ((EUID != 0)); then
    die packages "missing: $*. Install them as root: apt-get install --no-install-recommends $*"
  fi
  # Two processes at once would each remove the other's policy hook.
  (flock 8 && fetch_packages "$@") 8>"$run/packages.lock"
}

fetch_packages() { # fetch_packages PACKAGE…
  local start
  start=$(now_ms)
  say packages "installing $* (apt-get)…"
  apt_get update || warn packages "apt-get update failed, trying with the existing lists"
  without_autostart apt_get install --no-install-recommends "$@" || die packages "apt-get failed"
  say packages "installed in $(since "$start")"
}

apt_get() {
  DEBIAN_FRONTEND=noninteractive quietly packages "$logs/install-packages.log" \
    apt-get -qq -y -o DPkg::Lock::Timeout=300 "$@"
}

# Runs a command while Debian's policy hook forbids packages to start services; then disables, for the next boot, the
# services that were not there before.
without_autostart() {
  local policy=/usr/sbin/policy-rc.d result=0 service before
  before=$(present_services)
  if [[ -e $policy ]]; then
    "$@" || result=$?
  else
    # shellcheck disable=SC2064 # the path is known now
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    "$@" || result=$?
    rm -f "$policy"
    trap - EXIT
  fi
  for service in $(present_services); do
    [[ " $before " == *" $service "* ]] || disable_service "$service"
  done
  return "$result"
}

present_services() {
  local service present=()
  for service in "${package_services[@]}"; do
    [[ ! -e /lib/systemd/system/$service.service ]] || present+=("$service")
  done
  echo "${present[*]}"
}

# Also works where systemd is absent, as in a container's image: an enabled unit is a symbolic link.
disable_service() {
  rm -f "/etc/systemd/system/"*.wants/"$1".{service,socket}
  [[ ! -e /etc/init.d/$1 ]] || update-rc.d "$1" disable >/dev/null 2>&1 || true
  if [[ -d /run/systemd/system ]]; then systemctl daemon-reload || true; fi
}
