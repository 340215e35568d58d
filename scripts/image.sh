#!/usr/bin/env bash
# `make image`: builds the image from the Dockerfile, instruction by instruction, and proves it, on a Debian or Ubuntu with
# neither a container engine nor a registry. Needs root. With Docker or Podman, and a registry: `docker build .`
#
# The two images that the Dockerfile begins with get stand-ins (scripts/image/stand-ins.sh), buildah builds, and
# scripts/image/prove.py runs the image by crun, against the test servers.
# Images and layers stay in .services/cache/image (or POSTRIDER_IMAGE_STORE), for a quicker next time. Remove that
# folder to start from an empty store.

# shellcheck source=scripts/services/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/services/common.sh"
# shellcheck source=scripts/services/borrow.sh
source "$repo/scripts/services/borrow.sh"
# shellcheck source=scripts/services/packages.sh
source "$repo/scripts/services/packages.sh"
# shellcheck source=scripts/image/stand-ins.sh
source "$repo/scripts/image/stand-ins.sh"
cd "$repo"

((EUID == 0)) || die image "needs root: it makes root file systems, mounts them, and runs containers.
            With Docker or Podman and access to a registry: docker build ."

start=$(now_ms)
image=localhost/postrider
store=${POSTRIDER_IMAGE_STORE:-$cache/image}
work=$store/work

missing=()
have git || missing+=(git)
have buildah || missing+=(buildah)
have crun || missing+=(crun)
have debootstrap || missing+=(debootstrap)
# Without it debootstrap would believe any mirror.
[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
install_packages "${missing[@]}"
"$services" install toolchain python

# From here on the programs have these two in front. The checkout may be another user's.
git() { command git -c "safe.directory=$repo" "$@"; }
# All folders are in this work folder: images and settings of the machine's own Podman are not used.
driver=overlay
buildah() {
  command buildah --root "$store/images" --runroot "$store/run" --storage-driver "$driver" "$@"
}

mkdir -p "$store"
exec 8>"$store/lock"
flock --nonblock 8 || die image "another image.sh is running in $store"
# Where the root file system itself is an overlay, as in a container, a second overlay on top of it is not possible.
if ! buildah info >"$logs/image.log" 2>&1; then
  warn image "no overlay mounts here ($logs/image.log): every layer is a copy of all below it, which takes time and disk"
  driver=vfs
fi
# Left by an earlier run that was killed.
buildah rm --all >/dev/null
rm -rf "$work" && mkdir "$work"

# A clean checkout: the files that git knows, with uncommitted changes, each as old as its commit.
context=$work/context
mkdir "$context"
revision=$(git rev-parse HEAD)
changed=$(git stash create)
git archive "${changed:-HEAD}" | tar -x -C "$context"

stand_ins "$context/Dockerfile"
say image "building, log $logs/image.log; the first time takes some minutes…"
building=$(now_ms)
# Docker's format: the OCI's knows no HEALTHCHECK.
quietly image "$logs/image.log" buildah bud --format docker --isolation chroot --pull-never --layers --tag "$image" \
  --build-arg "REVISION=$revision${changed:+-changed}" "$context"
say image "built in $(since "$building")"

borrow_services mongodb rabbitmq 8>&- # a server that stays must not keep the lock
before_return() { buildah rm --all >/dev/null; }
container=$(buildah from --pull-never "$image")
buildah inspect --type image "$image" >"$work/inspected.json"
root=$(buildah mount "$container")
"$POSTRIDER_TEST_PYTHON" "$repo/scripts/image/prove.py" "$root" "$work/inspected.json" "$work"
say image "built and tested, $(since "$start") in total"
