"""Tasks and messages on their way to and from a worker: lines of JSON."""

from __future__ import annotations

import pytest

from ablate.runner.task import (
    Heartbeat,
    Message,
    ProcessExited,
    Task,
    TaskFinished,
    parse_message,
    to_line,
)
from ablate.training import Progress
from tests.runner.conftest import MakeTask


def test_what_is_known_of_a_run_reaches_the_worker(task: MakeTask) -> None:
    sent = task("one", memory_mib=7.0, seconds=9.0)
    assert Task.from_line(sent.to_line()) == sent
    assert Task.from_line(task("two").to_line()) == task("two")


@pytest.mark.parametrize(
    "message",
    [
        ProcessExited(-9),
        ProcessExited(0),
        TaskFinished("key"),
        TaskFinished("key", "memory", "no room"),
        Heartbeat("key", "training", largest_batch=7),
        Heartbeat("key", "training", Progress(1, 2, 0.5, None, 10.0, 3.0)),
    ],
)
def test_a_message_survives_the_way_from_its_worker(message: Message) -> None:
    assert parse_message(to_line(message)) == message


@pytest.mark.parametrize(
    "line",
    [
        *["", "{}", "[]", "1", '"ProcessExited"', '{"status": 1}', '{"message": []}'],
        '{"message": "ProcessExited"}',
        '{"message": "ProcessExited", "status": 1, "more": 2}',
    ],
)
def test_what_libraries_print_is_no_message(line: str) -> None:
    with pytest.raises(ValueError, match="not a message of a worker"):
        parse_message(line)
