"""A RabbitMQ queue and a Kafka topic of a test's own, with messages as Postrider sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pika
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .support import variable, wait_until


class Queue:
    """A queue with a dead-letter queue behind it."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.name = f"client-python-{uuid4().hex}"
        self.dead_name = f"{self.name}-dead"
        self.arguments = arguments
        self._connection = pika.BlockingConnection(pika.URLParameters(amqp_uri()))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead_name}
        self._channel.queue_declare(self.name, durable=True, arguments={**dead, **arguments})
        self._channel.queue_declare(self.dead_name, durable=True)

    def publish(
        self, key: str, body: bytes, id: str | None = None, headers: dict[str, Any] | None = None
    ) -> str:
        id = id or str(uuid4())
        properties = pika.BasicProperties(
            message_id=id,
            delivery_mode=2,
            content_type="application/json",
            type="OrderChanged",
            headers={"message-key": key, **(headers or {})},
        )
        self._channel.basic_publish("", self.name, body, properties)
        return id

    def publish_foreign(self, body: bytes, properties: pika.BasicProperties | None = None) -> None:
        self._channel.basic_publish("", self.name, body, properties)

    def deliver_without_answer(self) -> None:
        """Takes the first message on a connection that ends without an answer."""
        connection = pika.BlockingConnection(pika.URLParameters(amqp_uri()))
        channel = connection.channel()
        wait_until("there is a message", lambda: channel.basic_get(self.name)[0])
        connection.close()

    def dead(self) -> list[tuple[str | None, bytes]]:
        """Takes the id and body of what is in the dead-letter queue."""
        found: list[tuple[str | None, bytes]] = []
        while True:
            method, properties, body = self._channel.basic_get(self.dead_name, auto_ack=True)
            if method is None or properties is None or body is None:
                return found
            found.append((properties.message_id, body))

    def delete(self) -> None:
        for name in (self.name, self.dead_name):
            self._channel.queue_delete(name)
        self._connection.close()


@contextmanager
def queue(**arguments: Any) -> Iterator[Queue]:
    made = Queue(arguments)
    try:
        yield made
    finally:
        made.delete()


def amqp_uri() -> str:
    return variable("POSTRIDER_TEST_AMQP_URI")


class Topic:
    """A topic of one partition and the one for its dead messages."""

    def __init__(self) -> None:
        self.name = f"client-python-{uuid4().hex}"
        self.dead_name = f"{self.name}.dead"
        servers: Any = {"bootstrap.servers": brokers()}
        self._admin = AdminClient(servers)
        made = self._admin.create_topics([NewTopic(n, 1, 1) for n in (self.name, self.dead_name)])
        for future in made.values():
            future.result()
        self._producer = Producer(servers)
        self.group = f"group-{self.name}"

    def publish(self, key: str, body: bytes, id: str | None = None) -> str:
        id = id or str(uuid4())
        headers: Any = [("message-id", id.encode()), ("message-type", b"OrderChanged")]
        self._producer.produce(self.name, body, key=key, headers=headers)
        assert self._producer.flush(30) == 0
        return id

    def publish_foreign(
        self, body: bytes | None, key: str | None = None, headers: Any = None
    ) -> None:
        self._producer.produce(self.name, body, key=key, headers=headers)
        assert self._producer.flush(30) == 0

    def committed(self) -> int:
        """The offset that the group has committed; what is before it was handled."""
        with_group = {"bootstrap.servers": brokers(), "group.id": self.group}
        consumer = Consumer(with_group)
        try:
            [partition] = consumer.committed([TopicPartition(self.name, 0)], timeout=30)
            return max(partition.offset, 0)
        finally:
            consumer.close()

    def dead(self, count: int) -> list[Any]:
        """Reads so many messages of the topic for dead ones."""
        consumer = Consumer(
            {
                "bootstrap.servers": brokers(),
                "group.id": f"reader-{uuid4().hex}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition(self.dead_name, 0, 0)])
        found: list[Any] = []

        def read() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message)
            return len(found) >= count

        try:
            wait_until(f"there are {count} messages in {self.dead_name}", read)
        finally:
            consumer.close()
        return found

    def delete(self) -> None:
        for future in self._admin.delete_topics([self.name, self.dead_name]).values():
            future.result()


@contextmanager
def topic() -> Iterator[Topic]:
    made = Topic()
    try:
        yield made
    finally:
        made.delete()


def brokers() -> str:
    return variable("POSTRIDER_TEST_KAFKA_BROKERS")


def body_of(n: int) -> bytes:
    return json.dumps({"n": n}).encode()
