"""The gateway's HTTP protocol: what leaves in one write, and that nothing is held for ever."""

import asyncio

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from lmpoold.gateway.door import DoorProtocol

HEAD = "Host: x\r\nContent-Length: 2\r\n"


class Line(asyncio.Transport):
    """A connection that notes each write."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.closed = False

    def write(self, part):
        self.writes.append(bytes(part))

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def resume_reading(self):
        pass


async def asked(app, method="POST", headers=HEAD, body=b"{}"):
    """Return the connection once `app` has had one request."""
    config = Config(app, http=DoorProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    line, state = Line(), ServerState()
    protocol = DoorProtocol(config, state, {})
    protocol.connection_made(line)
    protocol.data_received(f"{method} / HTTP/1.1\r\n{headers}\r\n".encode() + body)
    async with asyncio.timeout(5):
        await asyncio.gather(*state.tasks)
    return line


def answering(*parts, headers=()):
    """An application that sends these parts of a body, one by one."""

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for left, part in zip(reversed(range(len(parts))), parts, strict=True):
            await send({"type": "http.response.body", "body": part, "more_body": bool(left)})

    return app


async def test_a_whole_answer_is_one_write():
    line = await asked(answering(b"whole", headers=[(b"content-length", b"5")]))
    (only,) = line.writes
    assert only.startswith(b"HTTP/1.1 200")
    assert only.endswith(b"\r\n\r\nwhole")


async def test_the_first_event_of_a_stream_comes_with_the_head_and_the_others_at_once():
    line = await asked(answering(b"one", b"two", b""))
    assert [write.startswith(b"HTTP/1.1") for write in line.writes] == [True, False, False]
    assert line.writes[0].endswith(b"\r\n\r\n3\r\none\r\n")
    assert line.writes[1:] == [b"3\r\ntwo\r\n", b"0\r\n\r\n"]


async def test_an_interim_answer_does_not_wait():
    line = await asked(answering(b"x"), headers=HEAD + "Expect: 100-continue\r\n")
    assert line.writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(line.writes) == 2


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_an_answer_that_may_have_no_body_is_written_as_ever(method):
    app = answering(b"", headers=[(b"content-length", b"0")])
    line = await asked(app, method, "Host: x\r\n", b"")
    assert b"".join(line.writes).endswith(b"content-length: 0\r\n\r\n")


async def test_an_answer_without_a_body_is_sent_too():
    line = await asked(answering(b"", headers=[(b"content-length", b"0")]))
    assert line.writes[0].endswith(b"\r\n\r\n")


async def test_a_head_whose_application_broke_is_sent_before_the_connection_ends(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("x")

    line = await asked(app)
    assert line.closed
    assert len(line.writes) == 1
    assert "ValueError" in caplog.text
