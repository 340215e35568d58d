"""Reads messages that are CloudEvents in binary mode, with the CNCF's SDK.

    cloud_events.py kafka|amqp|rabbitmq < [{"contentType"?, "headers": {name: value}, "key"?, "body"}, …]

Bytes are base64: bodies and keys (null where there is none), and the values of Kafka's headers. Those of AMQP are as
JSON has them. `amqp` is the CNCF's own binding, `rabbitmq` that of Knative, whose prefix is "ce-". Prints, for each,
{"attributes", "data"}: the time in milliseconds, data that is neither JSON nor text as {"base64"}. A message that is not
an event ends it with an error.
"""

import json
import sys
from base64 import b64decode, b64encode

from cloudevents.core.bindings import amqp, kafka, rabbitmq


def plain(text):
    return None if text is None else b64decode(text)


def of_kafka(message):
    headers = {name: plain(value) for name, value in message["headers"].items()}
    return kafka.from_kafka_event(kafka.KafkaMessage(headers, plain(message["key"]), plain(message["body"])))


def of_amqp(message):
    properties = {"content-type": message["contentType"]}
    return amqp.from_amqp_event(amqp.AMQPMessage(properties, message["headers"], plain(message["body"])))


def of_rabbitmq(message):
    body = plain(message["body"])
    return rabbitmq.from_rabbitmq_event(rabbitmq.RabbitMQMessage(message["headers"], message["contentType"], body))


def shown(event):
    attributes, data = dict(event.get_attributes()), event.get_data()
    attributes["time"] = round(attributes["time"].timestamp() * 1000)
    return {"attributes": attributes, "data": {"base64": b64encode(data).decode()} if isinstance(data, bytes) else data}


read = {"kafka": of_kafka, "amqp": of_amqp, "rabbitmq": of_rabbitmq}[sys.argv[1]]
json.dump([shown(read(message)) for message in json.load(sys.stdin)], sys.stdout)
