import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

DECODED_LATER = """
import numpy as np
from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import encode
from periplus.values.weight_state import Tensor
from rollout_worker.weights.compile import compile_decoder
from tests.support.compiled import compiled

payloads = []
for num_elements in (500, 5_000, 1 << 21):
    for density in (1e-3, 0.02, 0.4):
        rng = np.random.default_rng(0)
        old = (rng.standard_normal(num_elements).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        new = old ^ (rng.random(num_elements) < density)
        base, state = ({"w": Tensor("BF16", (num_elements,), bits.astype(np.uint16))} for bits in (old, new))
        payloads.append((base, encode(base, state)))
encoding = compiled()
compile_decoder()
ready = compiled()
for base, parts in payloads:
    decode(base, parts, max_content_bytes=1 << 30)
assert ready > encoding
print(sorted(compiled() - ready))
"""


def test_nothing_is_left_to_compile_for_a_real_delta() -> None:
    ran = subprocess.run([sys.executable, "-c", DECODED_LATER], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.strip() == "[]", ran.stderr
