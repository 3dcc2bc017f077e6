"""Changes of checkpoints, publications and the exported model."""

import json
import shutil
from collections.abc import Callable

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.values.policy import Policy
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import Tampering, at


def a_checkpoint_line_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.CheckpointEntry, policy=Policy(2, 6))]


def a_checkpoint_is_removed(forger: Forger) -> None:
    shutil.rmtree(forger.root / "checkpoints" / "1.4")


def the_newest_checkpoint_is_removed(forger: Forger) -> None:
    shutil.rmtree(forger.root / "checkpoints" / "2.6")


def two_manifests_change_places(forger: Forger) -> None:
    one, other = (forger.root / "checkpoints" / name / "manifest.json" for name in ("0.2", "1.4"))
    texts = one.read_text(), other.read_text()
    other.write_text(texts[0])
    one.write_text(texts[1])


def another_manifest_field(name: str, value: object) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        path = forger.root / "checkpoints" / "1.4" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return edit


def the_weights_are_replaced(forger: Forger) -> None:
    shutil.copy(*(forger.root / "checkpoints" / name / "model.safetensors" for name in ("0.2", "1.4")))


def a_part_is_missing(forger: Forger) -> None:
    (forger.root / "checkpoints" / "1.4" / "learner.json").unlink()


def other_weights_were_published(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(1, 4)), digest=bytes(32))


def weights_are_published_before_they_exist(forger: Forger) -> None:
    forger.insert(10, records.PublishEntry(policy=Policy(0, 9), digest=bytes(32)))


def a_publication_is_removed(policy: Policy) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        del forger.entries[at(forger, records.PublishEntry, policy=policy)]

    return edit


def a_restored_version_was_published_with_another_digest(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(1, 2)), digest=bytes(32))


def another_model_is_exported(forger: Forger) -> None:
    shutil.copy(forger.root / "checkpoints" / "0.2" / "model.safetensors", forger.root / "final" / "model.safetensors")


def an_export_is_claimed(policy: Policy) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        end = at(forger, records.EndEntry, how="succeeded")
        forger.insert(end, records.ExportEntry(policy=policy, digest=bytes(32)))

    return edit


def the_exported_model_cannot_be_read(forger: Forger) -> None:
    (forger.root / "final" / "model.safetensors").write_bytes(b"no model")


TAMPERINGS = (
    Tampering(a_checkpoint_line_is_removed, (Code.MANIFEST_UNRECORDED,)),
    Tampering(a_checkpoint_is_removed, (Code.MANIFEST_MISSING,)),
    Tampering(the_newest_checkpoint_is_removed, (Code.MANIFEST_MISSING,)),
    Tampering(two_manifests_change_places, (Code.MANIFEST_CONTRADICTS,), is_sealable=False),
    Tampering(another_manifest_field("parent", [0, 1]), (Code.MANIFEST_CONTRADICTS,), "another_parent"),
    Tampering(another_manifest_field("next_group", 1), (Code.MANIFEST_CONTRADICTS,), "another_next_group"),
    Tampering(another_manifest_field("open_groups", []), (Code.MANIFEST_CONTRADICTS,), "no_open_groups"),
    Tampering(another_manifest_field("open_groups", [0]), (Code.MANIFEST_CONTRADICTS,), "ended_groups_are_open"),
    Tampering(another_manifest_field("job_id", "other"), (Code.MANIFEST_CONTRADICTS,), "of_another_job"),
    Tampering(another_manifest_field("audit", "none"), (Code.MANIFEST_UNREADABLE,), "a_manifest_that_is_none"),
    Tampering(the_weights_are_replaced, (Code.MANIFEST_CONTRADICTS,)),
    Tampering(another_manifest_field("next_group", 1000), (Code.MANIFEST_CONTRADICTS,), "a_larger_next_group"),
    Tampering(another_manifest_field("parents", [[0, 1]]), (Code.MANIFEST_CONTRADICTS,), "another_lineage"),
    Tampering(another_manifest_field("parents", []), (Code.MANIFEST_CONTRADICTS,), "no_lineage"),
    Tampering(another_manifest_field("progress", {"steps": 3.0}), (Code.MANIFEST_CONTRADICTS,), "other_sums"),
    Tampering(a_publication_is_removed(Policy(0, 1)), (Code.PUBLISH_MISSING,), "a_publication_is_removed"),
    Tampering(a_publication_is_removed(Policy(2, 7)), (Code.PUBLISH_MISSING,), "the_last_publication_is_removed"),
    Tampering(a_restored_version_was_published_with_another_digest, (Code.PUBLISH_CONTRADICTS,)),
    Tampering(another_model_is_exported, (Code.FINAL_WRONG,)),
    Tampering(the_exported_model_cannot_be_read, (Code.FINAL_WRONG,)),
    Tampering(an_export_is_claimed(Policy(2, 7)), (Code.FINAL_WRONG,), "another_export_is_claimed"),
    Tampering(
        an_export_is_claimed(Policy(2, 6)), (Code.FINAL_WRONG, Code.PUBLISH_CONTRADICTS), "an_older_export_is_claimed"
    ),
    Tampering(a_part_is_missing, (Code.PART_WRONG,)),
    Tampering(other_weights_were_published, (Code.MANIFEST_CONTRADICTS,)),
    Tampering(weights_are_published_before_they_exist, (Code.PUBLISH_CONTRADICTS,)),
)
