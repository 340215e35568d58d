# The images that the Dockerfile begins with, where no registry can be reached: made of Debian's packages, and of this
# machine's Rust. Sourced by image.sh.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

debian=http://deb.debian.org/debian
debian_security=http://deb.debian.org/debian-security
authorities=/etc/ssl/certs/ca-certificates.crt

# rust:…-slim-bookworm has these, and Rust: https://github.com/rust-lang/docker-rust, stable/bookworm/slim/Dockerfile
builder_packages=ca-certificates,gcc,libc6-dev

# distroless/cc-debian12 has these: https://github.com/GoogleContainerTools/distroless, static/config.bzl, base/config.bzl
# and cc/config.bzl; and of ca-certificates the certificates alone, as one file.
runtime_packages=(base-files netbase tzdata media-types libc6 libssl3 libgomp1 libstdc++6 libgcc-s1 gcc-12-base)

stand_ins() { # stand_ins DOCKERFILE
  local builder runtime
  builder=$(sed -n 's/^ARG BUILDER=//p' "$1")
  runtime=$(sed -n 's/^ARG RUNTIME=//p' "$1")
  [[ $builder == docker.io/library/rust:*-slim-bookworm && $runtime == gcr.io/distroless/cc-debian12:nonroot ]] ||
    die image "there are no stand-ins for $builder and $runtime; change scripts/image/stand-ins.sh"
  stand_in builder "$builder"
  stand_in runtime "$runtime"
}

# Makes it, unless it exists already, made by the same lines from the same Rust.
stand_in() { # stand_in KIND NAME
  local kind=$1 name=$2 made_of made
  made_of=$({ cat "${BASH_SOURCE[0]}" && rustc --version; } | sha256sum | cut -c 1-16)
  made=$(buildah inspect --type image --format '{{index .OCIv1.Config.Labels "made-of"}}' "$name" 2>/dev/null || true)
  [[ $made != "$made_of" ]] || return 0
  local start container root
  start=$(now_ms)
  say image "making a stand-in for $name…"
  container=$(buildah from scratch)
  root=$(buildah mount "$container")
  quietly image "$logs/image-$kind.log" "make_$kind" "$root" "$name"
  "config_$kind" "$container"
  buildah config --label "made-of=$made_of" "$container"
  buildah commit --quiet --rm "$container" "$name" >/dev/null
  say image "made in $(since "$start")"
}

make_builder() { # make_builder ROOT NAME
  local root=$1 version sysroot part
  debootstrap --variant=minbase --include="$builder_packages" bookworm "$root" "$debian"
  printf 'deb %s bookworm main\ndeb %s bookworm-updates main\ndeb %s bookworm-security main\n' \
    "$debian" "$debian" "$debian_security" >"$root/etc/apt/sources.list"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  # The certificates that this machine trusts: a company's proxy may be in front of crates.io.
  [[ ! -e $authorities ]] || cp "$authorities" "$root$authorities"

  version=${2#*:}
  version=${version%%-*}
  # The same version wherever rustup has it, or this machine's own.
  sysroot=$(RUSTUP_TOOLCHAIN=$version rustc --print sysroot 2>/dev/null || rustc --print sysroot)
  "$sysroot/bin/rustc" --version | grep -qF " $version " ||
    warn image "this is $("$sysroot/bin/rustc" --version), in place of $version"
  mkdir -p "$root/usr/local/rustup/toolchains/$version" "$root/usr/local/cargo/bin"
  for part in bin lib libexec; do
    cp -a "$sysroot/$part" "$root/usr/local/rustup/toolchains/$version/"
  done
  for part in cargo rustc rustdoc; do
    ln -s "../../rustup/toolchains/$version/bin/$part" "$root/usr/local/cargo/bin/$part"
  done
}

config_builder() { # config_builder CONTAINER
  buildah config --env RUSTUP_HOME=/usr/local/rustup --env CARGO_HOME=/usr/local/cargo \
    --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$1"
}

make_runtime() { # make_runtime ROOT
  local root=$1 package parts=$work/packages container
  rm -rf "$parts" && mkdir -p "$parts"
  # With the other stand-in's apt, which has the same Debian whatever this machine runs.
  container=$(buildah from --pull-never "$builder")
  buildah run --isolation chroot --volume "$parts:/packages" --workingdir /packages "$container" -- sh -euc \
    'apt-get -qq update; apt-get -qq -o APT::Sandbox::User=root download "$@"' sh \
    "${runtime_packages[@]}" ca-certificates libc-bin
  buildah rm "$container"
  for package in "${runtime_packages[@]}"; do
    dpkg-deb --extract "$parts/$package"_*.deb "$root"
  done
  dpkg-deb --extract "$parts"/ca-certificates_*.deb "$parts/certificates"
  dpkg-deb --extract "$parts"/libc-bin_*.deb "$parts/libc-bin"
  mkdir -p "$root/etc/ssl/certs" "$root/usr/lib/locale" "$root/root" "$root/home"
  find "$parts/certificates/usr/share/ca-certificates" -name '*.crt' -exec cat {} + \
    >"$root$authorities"
  cp -a "$parts/libc-bin/usr/lib/locale/C.utf8" "$root/usr/lib/locale/"
  chmod 700 "$root/root"
  install -d -m 1777 "$root/tmp"
  install -d -m 700 -o 65532 -g 65532 "$root/home/nonroot"
  echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
  printf '%s\n' root:x:0: nobody:x:65534: tty:x:5: staff:x:50: nonroot:x:65532: >"$root/etc/group"
  printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin \
    nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin >"$root/etc/passwd"
}

config_runtime() { # config_runtime CONTAINER
  buildah config --user 65532 --workingdir /home/nonroot --env "SSL_CERT_FILE=$authorities" \
    --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$1"
}
