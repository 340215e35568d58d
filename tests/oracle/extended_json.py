"""Converts payloads to relaxed extended JSON with MongoDB's Python driver.

    extended_json.py URI DATABASE < {"id of a record": "the body that arrived", …}

Prints {"id": [what the driver says, the body]}, both parsed and written again in one way: that of Python, which keeps
the order of fields, every digit, and the difference between 1 and 1.0.
"""

import json
import sys

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from pymongo import MongoClient


def normal(text):
    return json.dumps(json.loads(text))


uri, database = sys.argv[1:]
bodies = json.load(sys.stdin)
# Otherwise it fails for a date beyond Python's own type.
dates = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
records = MongoClient(uri)[database].get_collection("outbox_records", codec_options=dates)
answer = {}
for record in records.find({"_id": {"$in": list(bodies)}}, {"payload": 1}):
    theirs = dumps(record["payload"], json_options=RELAXED_JSON_OPTIONS)
    answer[record["_id"]] = [normal(theirs), normal(bodies[record["_id"]])]
json.dump(answer, sys.stdout)
