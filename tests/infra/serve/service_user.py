"""A user of a service in a process of its own: ``python service_user.py KIND FOLDER`` stays until its input ends."""

import sys
from pathlib import Path

from infra.serve.servers import prefect_service
from infra.serve.service import Service, in_use

SMALL = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=PORT, bind='127.0.0.1')"


def small(program: str = SMALL) -> Service:
    """A server that starts in no time."""
    return Service(
        name="small",
        command=lambda port: [sys.executable, "-c", program.replace("PORT", str(port))],
        port=18431,
        health="/",
    )


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    service = prefect_service(folder.parent) if kind == "prefect" else small()
    with in_use(service, folder) as record:
        sys.stdout.write(record.model_dump_json() + "\n")
        sys.stdout.flush()
        sys.stdin.read()
