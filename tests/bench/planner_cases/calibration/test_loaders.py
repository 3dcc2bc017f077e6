"""Tables as series: which rows are read, which are left out, and which facts come from the sources' text."""

from pathlib import Path

import numpy as np
import pytest

from bench.planner_cases.calibration.layer_memory import predicted_bytes
from bench.planner_cases.calibration.loaders import load_memory, load_profiles, load_traits
from bench.planner_cases.calibration.observations import MeasuredTerm, Numerics, Series
from bench.planner_cases.calibration.training_tables import profiled_architecture
from planner.devices.catalogue import gpu_types

TABLES = {
    "helix_layer_times.csv": """model,machine,phase,batch_tokens,layer_time_ms
llama1_30b,t4x2,decode,0,0.0
llama1_30b,t4x2,decode,2,0.9
llama1_30b,t4x2,decode,4,2.6
llama1_30b,t4x2,decode,120,9.0
llama1_30b,t4x2,decode,140,11.0
""",
    "sailor_train_layer_times.csv": """model,gpu,tp,micro_batch,part,n_layers,fwd_s,bwd_s,update_s
OPT-30,A100-40,2,1,transformer_layer,50,0.0751,0.1505,0.0
OPT-350,A100-40,2,1,transformer_layer,26,0.0019,0.0034,0.0015
OPT-350,A100-40,2,2,transformer_layer,26,0.0026,0.0063,0.0016
OPT-350,A100-40,2,1,final_norm_or_head,26,0.0026,0.0023,0.0015
OPT-350,A100-40,2,1,embedding,26,0.0004,0.0,0.0015
GPT-Neo-2.7,GH-96,1,1,transformer_layer,26,0.0012,0.0027,0.0013
OPT-350,Titan-RTX,4,1,transformer_layer,26,0.0075,0.0110,0.0023
""",
    "vidur_dense_ops.csv": """gpu,model,num_tokens,tp,emb_ms,input_layernorm_ms,attn_pre_proj_ms,add_ms
a40,meta-llama/Meta-Llama-3-70B,16,1,9.0,0.5,2.0,0.25
""",
    "vidur_collectives.csv": """node,collective,num_workers,devices_per_node,size,median_ms
a100_dgx,all_reduce,4,4,65536,0.05
a100_dgx,all_reduce,4,4,2048,0.05
a100_dgx,all_reduce,16,8,65536,0.05
a100_dgx,send_recv,2,2,65536,0.05
""",
    "aiconfigurator_gemm_bf16.csv": """gpu,m,n,k,latency_ms
l40s,8,4096,4096,0.05
l40s,8,512,4096,0.05
""",
    "aiconfigurator_attention_bf16.csv": """gpu,phase,batch,seq_len,heads,kv_heads,latency_ms
l40s,context,4,1024,32,8,0.3
l40s,context,4,64,32,8,0.3
l40s,generation,64,4096,32,8,1.5
l40s,generation,1,4096,32,8,0.02
""",
    "aiconfigurator_nccl.csv": """gpu,op,num_gpus,message_size,latency_ms
h100_sxm,all_gather,8,65536,0.02
h100_sxm,alltoall,8,65536,0.02
""",
    "sailor_layer_memory.csv": """model,tp,part,n_layers,params_bytes,act_output_bytes,act_input_bytes,act_mem_bytes
OPT-350,4,transformer_layer,26,12614656,8388608,8388608,109068288
OPT-350,4,first,26,60293120,8388608,4227072,8407040
OPT-350,4,last,26,51912704,103809028,112222208,218131456
LLAMA-3-8,2,last,35,16384,134217732,960593920,1229038592
""",
}
LINKS = """gpu,gpus,max_gbytes_per_s,coef_log2mb_2,coef_log2mb_1,coef_log2mb_0
A100-40,4,243.2,0,0,0
Titan-RTX,4,12.4,0,0,0
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "gpu_profiles").mkdir()
    (tmp_path / "network_sailor").mkdir()
    for name, text in TABLES.items():
        (tmp_path / "gpu_profiles" / name).write_text(text)
    (tmp_path / "network_sailor" / "intra_node_bandwidth.csv").write_text(LINKS)
    return tmp_path


def only(series: tuple[Series, ...], term: MeasuredTerm, model: str = "", variant: str = "") -> Series:
    return next(one for one in series if one.term is term and model in one.model and variant in one.variant)


def test_rows_that_rounding_may_have_moved_are_left_out(data: Path) -> None:
    found = only(load_profiles(data), MeasuredTerm.DECODE_LAYER)
    assert found.columns["tokens"].tolist() == [4.0, 140.0]
    assert (found.gpu, found.tensor, found.columns["sequence"].tolist()) == ("T4", 2, [870.0, 870.0])


def test_a_copied_profile_and_embeddings_are_left_out(data: Path) -> None:
    found = load_profiles(data)
    assert not [one for one in found if one.gpu == "GH200-96GB"]
    assert sorted(one.term.value for one in found if one.source == "sailor" and one.gpu == "A100-40GB-SXM") == sorted(
        [MeasuredTerm.TRAIN_FORWARD, MeasuredTerm.TRAIN_BACKWARD] * 2 + [MeasuredTerm.HEAD] * 2 + [MeasuredTerm.UPDATE]
    )


def test_runs_below_the_peak_of_float32_count_as_float32(data: Path) -> None:
    found = load_profiles(data)
    assert only(found, MeasuredTerm.TRAIN_FORWARD, "OPT-30B").numerics is Numerics.FLOAT32
    assert only(found, MeasuredTerm.TRAIN_FORWARD, "OPT-350M").numerics is Numerics.TENSOR32


def test_an_update_is_of_the_two_layers_and_tables_that_were_profiled(data: Path) -> None:
    found = only(load_profiles(data), MeasuredTerm.UPDATE, "OPT-350M")
    arch = profiled_architecture("OPT-350", 2)
    expected = 2 * 50432 * 1024 / 2 + 2048 * 1024 + 2 * arch.params_per_layer / 2
    assert found.columns["params"].tolist() == [expected]
    assert found.seconds.tolist() == [pytest.approx(0.00155)]


def test_links_are_of_one_device_and_only_where_a_bus_is_shared(data: Path) -> None:
    found = [one for one in load_profiles(data) if one.term is MeasuredTerm.TRAIN_FORWARD]
    links = {one.gpu: one.link_bytes_per_s for one in found}
    assert links == {"A100-40GB-SXM": None, "Titan-RTX": 6.2e9}


def test_the_kernels_of_a_layer_are_added_up_and_the_residual_twice(data: Path) -> None:
    found = only(load_profiles(data), MeasuredTerm.DENSE_LAYER)
    assert found.seconds.tolist() == [pytest.approx(3.0e-3)]
    assert found.model == "Llama-70B"


def test_messages_count_elements_in_one_table_and_bytes_in_the_other(data: Path) -> None:
    found = load_profiles(data)
    assert only(found, MeasuredTerm.COLLECTIVE, variant="all_gather").columns["payload_bytes"].tolist() == [131072.0]
    reduce = only(found, MeasuredTerm.COLLECTIVE, variant="all_reduce")
    assert (reduce.columns["payload_bytes"].tolist(), reduce.tensor) == ([65536.0], 4)
    assert len([one for one in found if one.term is MeasuredTerm.COLLECTIVE]) == 2


def test_kernels_too_small_and_caches_still_warm_are_left_out(data: Path) -> None:
    found = load_profiles(data)
    assert sum(map(len, (one for one in found if one.term is MeasuredTerm.MATMUL))) == 1
    assert only(found, MeasuredTerm.PREFILL_ATTENTION).columns["tokens"].tolist() == [4096.0]
    assert only(found, MeasuredTerm.DECODE_ATTENTION).columns["tokens"].tolist() == [64.0]


def test_every_series_is_of_a_known_type_and_has_as_many_numbers_as_times(data: Path) -> None:
    for one in load_profiles(data):
        assert one.gpu in gpu_types()
        assert all(len(values) == len(one) for values in one.columns.values())
        assert np.all(one.seconds > 0)


def test_memory_of_layers_is_what_their_programs_keep(data: Path) -> None:
    rows = load_memory(data)
    assert [row.part for row in rows] == ["transformer_layer", "first", "last"]
    for row in rows:
        params, activations = predicted_bytes(row)
        assert params == pytest.approx(row.params_bytes, rel=0.005)
        assert activations == pytest.approx(row.activation_bytes, rel=0.01)


def test_every_packaged_type_has_traits() -> None:
    traits = load_traits()
    assert traits.keys() == {name for name, gpu in gpu_types().items() if not gpu.is_cpu}
    assert traits["L4"].is_low_power
    assert traits["A100-80GB-SXM"].silicon == traits["A100-40GB-SXM"].silicon
