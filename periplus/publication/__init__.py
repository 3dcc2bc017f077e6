"""Publications: how bundles and weights travel from the trainer through gateways to every reader.

The package does no I/O. Records of publications come in and go out as values.

A publication consists of an opening (what it is, and caps on what it will need), its payload in chunks (each chunk is
one part of the codec's output), and a closing (counts and digests of what it was). Chunks leave while later ones are
still being encoded, so the opening promises caps and the closing counts. A *bundle* holds the files that a worker needs
besides weights, an *anchor* is a full state, and a *delta* leads from a base version to the next state. This package
opens nothing, reads no clock, and does not know what payloads mean.

    values    the records, and the bytes of each that are signed
    signing   JobAuthority certifies a PublisherKey for (job, fork); Trust verifies on the reader's side
    order     order and sizes of one stream (StreamChecker, Assembler); which version may follow what is held (admit)
    build     PublicationWriter signs parts as they come; DerivedWriter makes what a gateway sends from its own copy
    log       PublicationLog: what a gateway keeps in memory and passes on at once, with one cursor per reader

**What is signed** (Ed25519; integers are little-endian; `str` and `bytes` follow their length as u32; H is BLAKE3):

    certificate  "periplus.publication/1 certificate" 0x00, job str, fork u32, public key bytes
    opening      "periplus.publication/1 opening" 0x00, job str, kind u8 (bundle 1, anchor 2, delta 3), policy,
                 has a base u8, base policy (0.0 without one), codec u16, max_payload_bytes u64, max_chunks u32,
                 content_bytes u64, base digest bytes, publisher's public key bytes; a policy is fork u32, version u64
    chunk        "periplus.publication/1 chunk" 0x00, H(signed bytes of the opening), index u32, length u64, H(content)
    closing      "periplus.publication/1 closing" 0x00, H(signed bytes of the opening), num_chunks u32,
                 payload_bytes u64, root bytes, state digest bytes, probe bytes (float32 each)

The authority's key (the coordinator's) signs certificates, and the certified key signs the rest. Readers know the
authority's public key and the job from their own task. `root` is the Merkle root (digest.py) of H(content) of the
chunks, and the state digest is that of the whole state after applying. The signature of an opening binds it to one job,
fork, version, base and key. A chunk's signature binds it to its opening and its place, and the closing's signature
binds it to all of them. Repeated records are recognised by the signed bytes and not by signatures, so a second valid
encoding of a signature would make no difference.

**Derived publications** are made by a gateway from its own copy, for one reader: a full state, or several deltas folded
into one. Only the state that they lead to is signed: the opening carries the trainer's opening and closing of that
version (`attested`), and policy, codec, content_bytes (at most), state digest and probe must agree with them. The
reader that applies a derived publication proves it by the state digest, and does not pass it on. A reader for which the
proof fails subscribes again and asks for signed publications only (`distrust`).

**Rules**, the same at every hop:
- A stream is an opening, chunks in order, and a closing. An opening is legal at any time: it drops an unfinished
  publication before it, whose publisher died or was fenced. Any other departure is CorruptFrame; any doubt about the
  sender is Forged.
- Sizes are checked before signatures, and signatures before anything is kept. Memory grows with what arrived, within
  caps that are proportional to content_bytes, and content_bytes must be within the reader's own cap.
- A version has one content. A publication at or below the held version is Fenced, unless it repeats what was held: then
  it is read and checked, and changes nothing. A fork below the highest seen one is Fenced. A delta from anything but
  exactly what is held (policy and digest) is WrongBase.
- A refusal changes nothing and ends the stream; the reader then subscribes again.

**What a relay can do:** stop, delay, or cut a publication short; send a reader nothing newer (nothing expires by clock:
fresh means a higher version); send a newcomer any version of the highest fork that the relay admits to know; send a
derived payload that proves false, which costs the reader one transfer. **What it cannot do:** change, reorder, extend
or mix publications; pass one off as that of another job, fork, version or base; lead a reader back, or to a state that
the trainer has not signed; or make it allocate beyond the caps. A trainer of an old fork can do nothing once a reader
has seen the higher one.

A trainer could sign two contents for one version. The root and the state digest in the closing then tell their chunks
apart, and a reader that holds one of them refuses the other. Keys of small order, for which anybody can forge
signatures, are not certified.
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
    StreamChecker,
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
    "StreamChecker",
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
