#!/usr/bin/env bash
# Builds the package, installs it from the built file into empty projects (ES modules and CommonJS, mongodb 6 and 7), and
# runs and type-checks a program there. Needs the variables of `scripts/services.sh env`, and POSTRIDER_BIN.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
package=$PWD

: "${POSTRIDER_TEST_MONGODB_URI:?is not set; run: eval \"\$(scripts/services.sh env)\"}"
: "${POSTRIDER_BIN:?is not set; it is the binary of Postrider}"
[[ -z ${POSTRIDER_TEST_NODE:-} ]] || PATH=$POSTRIDER_TEST_NODE:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

npm pack --silent --pack-destination "$work" >/dev/null
tarball=$(echo "$work"/*.tgz)
files=$(tar -tzf "$tarball")
unexpected=$(grep -Ev '^package/(package\.json|README\.md|LICENSE|dist/[a-z]+\.(js|mjs|d\.ts|d\.mts))$' <<<"$files" || true)
[[ -z $unexpected ]] || { echo "unexpected files in $tarball: $unexpected" >&2; exit 1; }
for file in LICENSE README.md dist/index.js dist/index.mjs dist/index.d.ts dist/index.d.mts; do
  grep -qx "package/$file" <<<"$files" || { echo "$file is missing in $tarball" >&2; exit 1; }
done

# The version of a package that the lock file has.
locked() { node -p "require('$package/node_modules/$1/package.json').version"; }

for kind in module commonjs; do
  for driver in mongodb mongodb6; do
    project=$work/$kind-$driver
    mkdir "$project"
    echo "{ \"private\": true, \"type\": \"$kind\" }" >"$project/package.json"
    cp package-check/* "$project"
    packages=("$tarball" "mongodb@$(locked $driver)" "@types/node@$(locked @types/node)")
    program=index.cjs
    if [[ $kind == module ]]; then
      program=index.mjs
      packages+=("@opentelemetry/api@$(locked @opentelemetry/api)")
    fi
    (
      cd "$project"
      npm install --silent --no-save --prefer-offline --ignore-scripts --no-audit --no-fund "${packages[@]}"
      node "$program"
      "$package/node_modules/.bin/tsc" --noEmit --strict --module nodenext --target es2022 --types node types.ts
    )
    echo "check-package: $kind, mongodb $(locked $driver): ok"
  done
done
