"""The script that waits for a cloud's notice asks each cloud's metadata service in its own way."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.processes.deploy_tools import DEPLOY, tool

SCRIPT = DEPLOY / "spot-notice.sh"

CLOUDS = {
    "aws": ("/latest/meta-data/spot/instance-action", ("X-aws-ec2-metadata-token", "session"), '{"action": "stop"}'),
    "gcp": ("/computeMetadata/v1/instance/preempted", ("Metadata-Flavor", "Google"), "TRUE"),
    "azure": (
        "/metadata/scheduledevents?api-version=2020-07-01",
        ("Metadata", "true"),
        '{"Events": [{"EventType": "Preempt"}]}',
    ),
}
"""Path, header and answer of each cloud's metadata service that announce the end of a machine."""

QUIET = {"aws": None, "gcp": "FALSE", "azure": '{"Events": []}'}
"""Answer of each cloud before that; None for status 404."""


@contextmanager
def metadata(cloud: str, num_quiet: int) -> Iterator[str]:
    """Serve a cloud's metadata, which announce the end of the machine after `num_quiet` answers."""
    path, (header, value), notice = CLOUDS[cloud]
    asked = 0

    class Service(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer("session")

        def do_GET(self) -> None:
            nonlocal asked
            asked += 1
            is_right = self.path == path and self.headers.get(header) == value
            self._answer((QUIET[cloud] if asked <= num_quiet else notice) if is_right else None)

        def _answer(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_it_ends_when_the_cloud_announces_the_end(cloud: str) -> None:
    tool("curl")
    with metadata(cloud, num_quiet=2) as address:
        environment = {"PATH": "/usr/bin:/bin", "METADATA": address, "POLL_S": "0.01"}
        done = subprocess.run(["bash", SCRIPT, cloud], env=environment, timeout=30, check=False, capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (0, f"spot-notice.sh: {cloud} will take this machine away\n")


def test_it_waits_while_the_cloud_announces_nothing() -> None:
    tool("curl")
    with metadata("gcp", num_quiet=1_000_000) as address:
        environment = {"PATH": "/usr/bin:/bin", "METADATA": address, "POLL_S": "0.01"}
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["bash", SCRIPT, "gcp"], env=environment, timeout=0.3, check=False, capture_output=True)


def test_an_unknown_cloud_is_refused() -> None:
    done = subprocess.run(["bash", SCRIPT, "other"], timeout=30, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "give aws, gcp or azure" in done.stderr
