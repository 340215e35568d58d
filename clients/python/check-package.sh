#!/usr/bin/env bash
# Builds wheel and sdist, installs each into an empty folder, and lets a program there enqueue a record.
#
#   clients/python/check-package.sh PYTHON
#
# PYTHON is the command of a Python that has build, flit-core and pymongo. MongoDB: POSTRIDER_TEST_MONGODB_URI.

set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$1
: "${POSTRIDER_TEST_MONGODB_URI:?is not set; run clients/python/test.sh, which sets it}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A copy, since a build may leave files.
cp -r "$package" "$folder/source"
"$python" -m build --no-isolation --outdir "$folder/dist" "$folder/source" >"$folder/build.log" 2>&1 || {
  cat "$folder/build.log" >&2
  exit 1
}
wheels=("$folder"/dist/postrider_outbox-*-py3-none-any.whl)
sdists=("$folder"/dist/postrider_outbox-*.tar.gz)
[[ ${#wheels[@]} == 1 && -f ${wheels[0]} && ${#sdists[@]} == 1 && -f ${sdists[0]} ]] || {
  echo "expected one wheel and one sdist: $(ls "$folder/dist")" >&2
  exit 1
}

# The driver and nothing else: no package of the tests, and not the sources.
packages=$("$python" -c 'import os, pymongo; print(os.path.dirname(os.path.dirname(pymongo.__file__)))')
mkdir "$folder/driver"
for name in pymongo bson gridfs dns; do ln -s "$packages/$name" "$folder/driver/$name"; done

cat >"$folder/program.py" <<'PROGRAM'
import importlib.metadata
import os
import pathlib
import sys
import uuid

import pymongo
import postrider_outbox
from postrider_outbox import Outbox, Record

installed = pathlib.Path(sys.argv[1])
assert installed in pathlib.Path(postrider_outbox.__file__).parents, postrider_outbox.__file__
metadata = importlib.metadata.metadata("postrider-outbox")
assert (installed / "postrider_outbox" / "py.typed").exists()
[licence] = installed.glob("postrider_outbox-*.dist-info/licenses/LICENSE")
required = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
assert len(required) == 1 and required[0].startswith("pymongo"), required
with pymongo.MongoClient(os.environ["POSTRIDER_TEST_MONGODB_URI"]) as client:
    database = client.get_database(f"client_python_{uuid.uuid4().hex[:20]}")
    try:
        outbox = Outbox(database)
        outbox.probe()
        with client.start_session() as session:
            record = Record("Installed", {"n": 1}, key="a")
            session.with_transaction(lambda session: outbox.enqueue(session, record))
        assert database.outbox_records.count_documents({"type": "Installed", "partition": 178}) == 1
    finally:
        client.drop_database(database)
PROGRAM

for built in "${wheels[0]}" "${sdists[0]}"; do
  project=$folder/project
  rm -rf "$project" && mkdir "$project"
  # The backend for the sdist; it is not needed later.
  PYTHONPATH=$packages PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-index --no-deps --no-build-isolation \
    --target "$project" "$built"
  (cd "$project" && PYTHONPATH=$project:$folder/driver python3 -S "$folder/program.py" "$project")
  echo "$(basename "$built"): installed and used" >&2
done
