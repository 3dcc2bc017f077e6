"""Publications: how bundles and weights travel from the trainer through gateways to every reader, without I/O.

A publication is an opening (what it is, and caps on what it will need), its payload in chunks, each one part of what
the codec made, and a closing (what it must have been). Chunks leave while the next are being encoded, so the opening
promises caps and the closing counts. This package opens nothing, reads no clock, and does not know what payloads mean.

    values    the records, and the bytes of each that are signed
    signing   JobAuthority certifies a PublisherKey for (job, fork); Trust is what a reader believes
    order     the order and sizes of one stream (Intake, Assembler); what may follow what is held (admit)
    build     PublicationWriter signs as parts come; DerivedWriter makes what a gateway sends from its own copy
    log       PublicationLog: what a gateway keeps in memory, passed on as it comes, a cursor a reader

**What is signed** (Ed25519; integers little-endian; `str` and `bytes` after their length as u32; H is BLAKE3):

    certificate  "periplus.publication/1 certificate" 0x00, job str, fork u32, public key bytes
    opening      "periplus.publication/1 opening" 0x00, job str, kind u8 (bundle 1, anchor 2, delta 3), policy,
                 has a base u8, base policy (0.0 without one), codec u16, max_payload_bytes u64, max_chunks u32,
                 content_bytes u64, base digest bytes, publisher's public key bytes; a policy is fork u32, version u64
    chunk        "periplus.publication/1 chunk" 0x00, H(signed bytes of the opening), index u32, length u64, H(content)
    closing      "periplus.publication/1 closing" 0x00, H(signed bytes of the opening), num_chunks u32,
                 payload_bytes u64, root bytes, state digest bytes, probe bytes (float32 each)

The authority (the coordinator's) signs certificates; the certified key signs the rest. Readers have the authority's
public key and the job from their own task. `root` is the Merkle root (digest.py) of the H(content) of the chunks, and
the state digest that of the whole state after applying. Signatures bind a record to one opening, and so to one job,
fork, version, base and key; a chunk to its place; the closing to all of them. Repeats are told by these bytes and not
by signatures, so a second encoding of a signature, were there one, would change nothing.

**Derived publications** are made by a gateway from its own copy, for one reader: a full state, or a fold of several
deltas. Only what they lead to is signed: the opening shows the trainer's opening and closing of that version
(`attested`), and policy, codec, content_bytes (at most), state digest and probe must agree with it. Who applies one
proves it by the state digest. It is not passed on; who cannot prove it subscribes again, distrusting copies.

**Rules**, the same on every hop:
- Opening, chunks in order, closing. An opening is legal at any time: it drops an unfinished publication before it,
  whose publisher died or was fenced. Any other departure is CorruptFrame, any doubt about the sender Forged.
- Sizes are checked before signatures, signatures before anything is kept; memory grows with what arrived, within caps
  that are in proportion to content_bytes, and content_bytes within the reader's own.
- A version has one content. What is at or below what is held is Fenced, unless it is the same again: then it is read,
  checked, and changes nothing. A fork below the highest seen is Fenced. A delta from anything but exactly what is held
  (policy and digest) is WrongBase.
- A refusal changes nothing, and ends the stream: subscribe anew.

**A relay can** stop, delay, or cut a publication short; send a reader nothing newer (there is no expiry by clock: fresh
means higher); send a newcomer any version of the highest fork that the relay chooses to know; send a derived payload
that proves false, which costs the reader one transfer. **It cannot** change, reorder, extend or mix publications, or
pass off one of another job, fork, version or base; lead a reader back, or to a state that the trainer has not signed;
or make it allocate beyond caps. A trainer of an old fork can do nothing once a reader has seen the higher one.

A trainer could sign two contents for one version: the root and the state digest in its closing then decide which chunks
are whose, and whoever holds one of them refuses the other. Keys of small order, for which anybody can sign, are not
certified.
"""

from periplus.publication.build import (
    DerivedWriter,
    PublicationWriter,
    bundle_parts,
    derived_publication,
    signed_publication,
)
from periplus.publication.log import Cursor, Derive, NeedsAnchor, Outcome, PublicationLog, Send, Wait
from periplus.publication.order import (
    Admission,
    Assembler,
    Intake,
    admit,
    check_closing,
    check_fork,
    check_opening,
    check_repeat,
    payload_cap,
    payload_root,
)
from periplus.publication.signing import JobAuthority, PublisherKey, Trust
from periplus.publication.values import (
    BUNDLE_CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    Attestation,
    Certificate,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
)

__all__ = [
    "BUNDLE_CHUNK_BYTES",
    "MAX_CHUNKS",
    "MAX_CHUNK_BYTES",
    "Admission",
    "Assembler",
    "Attestation",
    "Certificate",
    "Chunk",
    "Closing",
    "Cursor",
    "Derive",
    "DerivedWriter",
    "Intake",
    "JobAuthority",
    "NeedsAnchor",
    "Opening",
    "Outcome",
    "Publication",
    "PublicationKind",
    "PublicationLog",
    "PublicationRecord",
    "PublicationWriter",
    "PublisherKey",
    "Send",
    "Trust",
    "Wait",
    "admit",
    "bundle_parts",
    "check_closing",
    "check_fork",
    "check_opening",
    "check_repeat",
    "derived_publication",
    "payload_cap",
    "payload_root",
    "signed_publication",
]
