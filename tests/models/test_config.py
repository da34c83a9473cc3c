"""Guards the reading of a model's configuration: what we would run wrongly must be refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.cache.layout import KVDtype
from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.config import ModelConfig
from ostinato.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from tests.tiny import HF_CLASSES, TinyArchitecture, tiny_config

SMOLLM2_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100_000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 49_152,
    "llama.rope.dimension_count": 64,
}


def hf(architecture: TinyArchitecture = "llama", **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**tiny_config(architecture), **changes})


def gguf(**changes: Any) -> ModelConfig:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return ModelConfig.from_gguf({**SMOLLM2_METADATA, **keys})


@pytest.mark.parametrize("architecture", HF_CLASSES)
def test_each_architecture_is_read_from_config_json(architecture: TinyArchitecture) -> None:
    config = hf(architecture)
    assert config.architecture == architecture
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert config.head_dim == (24 if architecture == "qwen3" else 16)
    assert config.qkv_bias == (architecture == "qwen2")
    assert config.qk_norm == (architecture == "qwen3")
    assert config.tie_embeddings is True


def test_the_default_model_is_read_from_gguf_metadata() -> None:
    config = gguf()
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position) == (49_152, 8192)
    assert config.rope == RopeConfig(theta=100_000.0)
    assert config.tie_embeddings is None


def test_k_v_memory_follows_from_the_configuration() -> None:
    spec = gguf().kv_spec(KVDtype.FP16, block_size=16)
    assert spec.bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert spec.block_shape == (30, 2, 3, 16, 64)


def test_the_backend_is_told_shapes_and_scale() -> None:
    shape = hf("qwen3").shape()
    assert (shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (
        *(64, 4, 2),
        24,
    )
    assert shape.attention_scale == pytest.approx(24**-0.5)


def test_missing_kv_heads_mean_one_for_each_query_head() -> None:
    assert hf(num_key_value_heads=None).num_kv_heads == 4


def test_a_missing_head_dim_is_the_hidden_size_shared_out() -> None:
    assert hf(head_dim=None).head_dim == 16
    assert hf("qwen3", head_dim=None).head_dim == 128


def test_rope_is_read_from_both_forms_of_config_json() -> None:
    parameters = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = RopeConfig(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    assert hf(rope_scaling=parameters, rope_theta=500_000.0).rope == expected
    new = {**parameters, "rope_theta": 500_000.0}
    assert hf(rope_parameters=new, rope_scaling=None, rope_theta=None).rope == expected


def test_the_old_key_type_names_the_scaling_too() -> None:
    assert hf(rope_scaling={"type": "linear", "factor": 2.0}).rope.scaling == LinearScaling(2.0)


def test_default_scaling_is_no_scaling() -> None:
    assert hf(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).rope == RopeConfig(7.0)


def test_yarn_without_a_factor_takes_the_ratio_of_the_contexts() -> None:
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 1024, "factor": None}
    assert hf(rope_scaling=yarn).rope.scaling == YarnScaling(4.0, 1024)


def test_yarn_extends_a_context_that_was_left_as_it_was() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert hf("qwen2", rope_scaling=yarn).max_position == 16_384


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "architecture 'gemma3'"),
        ({"model_type": "smollm3"}, "architecture 'smollm3'"),
        ({"model_type": None}, "architecture None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a causal language model"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"attn_logit_softcapping": 50.0}, "capped attention logits"),
        ({"final_logit_softcapping": 30.0}, "capped output logits"),
        ({"mlp_bias": True}, "biases in the MLP"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, "multimodal"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "between layers"),
    ],
)
def test_a_feature_that_we_do_not_run_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        hf(**changes)


WINDOW = {"use_sliding_window": True, "sliding_window": 1024}


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("mistral", {"sliding_window": 1024}, (1024, 1024)),
        ("qwen2", {**WINDOW, "max_window_layers": 1}, (None, 1024)),
        ("qwen3", {**WINDOW, "max_window_layers": 0}, (1024, 1024)),
        ("qwen3", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}, (1024, None)),
    ],
)
def test_each_layer_gets_the_sliding_window_that_the_file_gives_it(
    architecture: TinyArchitecture, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    config = hf(architecture, **changes)
    assert config.sliding_windows == windows
    assert tuple(config.layer_shape(i).sliding_window for i in range(2)) == windows
    assert config.shape().sliding_window is None


def test_a_window_of_a_family_without_windows_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="window of 1024 tokens"):
        hf("llama", sliding_window=1024)


def test_layer_types_must_name_every_layer() -> None:
    with pytest.raises(ModelFormatError, match="names 1 of 2 layers"):
        hf("qwen3", **WINDOW, layer_types=["sliding_attention"])


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 4096}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 1024}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 2}),
        ("qwen3", {"sliding_window": 1024, "layer_types": ["full_attention"] * 2}),
    ],
)
def test_a_sliding_window_without_effect_is_accepted(
    architecture: TinyArchitecture, changes: dict[str, Any]
) -> None:
    config = hf(architecture, **changes)
    assert config.sliding_windows == ()
    assert config.layer_shape(1) == config.shape()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "integer hidden_size, found nothing"),
        ({"num_hidden_layers": "two"}, "integer num_hidden_layers, found 'two'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a small positive number"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 15}, "even head dimension"),
        ({"rope_theta": -1.0}, "rope_theta must be a positive number"),
        ({"rope_scaling": {"type": "linear"}}, "lack 'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be a positive number"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "must be above low_freq_factor",
        ),
    ],
)
def test_an_impossible_number_is_an_error_that_names_it(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        hf(**changes)


def test_gguf_linear_scaling_is_read_from_the_new_and_the_old_key() -> None:
    new = gguf(llama__rope__scaling__type="linear", **{"llama.rope.scaling.factor": 4.0})
    old = gguf(llama__rope__scale_linear=4.0)
    assert new.rope.scaling == old.rope.scaling == LinearScaling(4.0)


def test_gguf_yarn_is_read_and_its_attention_factor_multiplies_the_default() -> None:
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 2048,
    }
    assert gguf(**keys).rope.scaling == YarnScaling(4.0, 2048)
    scaled = gguf(**keys, **{"llama.rope.scaling.attn_factor": 2.0}).rope.scaling
    assert isinstance(scaled, YarnScaling)
    assert scaled.attention_factor == pytest.approx(2 * 1.138629436)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "deepseek2", "architecture 'deepseek2'"),
        ("llama.expert_count", 8, "mixture of experts"),
        ("llama.attention.kv_lora_rank", 512, "latent attention"),
        ("llama.final_logit_softcapping", 30.0, "capped output logits"),
        ("llama.rope.dimension_count", 32, "32 of 64 dimensions"),
        ("llama.rope.scaling.type", "longrope", "'longrope'"),
        ("llama.attention.value_length", 32, "values of 32"),
        ("llama.attention.head_count_kv", [1, 3], "layers that differ in"),
        ("llama.logit_scale", 0.0625, "scaled logits"),
    ],
)
def test_a_gguf_feature_that_we_do_not_run_is_refused_by_name(
    key: str, value: Any, message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        gguf(**{key: value})


@pytest.mark.parametrize("key", [key for key in SMOLLM2_METADATA if "general" not in key])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "many"])
def test_no_number_of_a_gguf_file_can_crash_the_reader(key: str, value: object) -> None:
    if key.endswith("epsilon") and value == 0:
        return  # strange, but a number to compute with
    with pytest.raises((ModelFormatError, UnsupportedModelError)):
        ModelConfig.from_gguf({**SMOLLM2_METADATA, key: value})


@pytest.mark.parametrize(
    ("pattern", "first_layers"),
    [
        (None, (512, 512, 512, 512)),
        (0, (512, 512, 512, 512)),
        (3, (512, 512, None, 512)),
        ([True, False] * 15, (512, None, 512, None)),
    ],
)
def test_a_gguf_file_says_which_layers_have_its_window(
    pattern: object, first_layers: tuple[int | None, ...]
) -> None:
    keys = {"llama.attention.sliding_window": 512}
    if pattern is not None:
        keys["llama.attention.sliding_window_pattern"] = pattern  # type: ignore[assignment]
    config = gguf(**keys)
    assert config.sliding_windows[:4] == first_layers
    assert len(config.sliding_windows) == config.num_layers
    assert [config.layer_shape(at).sliding_window for at in range(4)] == list(first_layers)


@pytest.mark.parametrize(
    "keys",
    [
        {"sliding_window": 0},
        {"sliding_window": 8192},
        {"sliding_window": 512, "sliding_window_pattern": 1},
        {"sliding_window": 512, "sliding_window_pattern": [False] * 30},
    ],
)
def test_a_window_of_a_gguf_file_without_effect_is_accepted(keys: dict[str, Any]) -> None:
    assert gguf(**{f"llama.attention.{key}": v for key, v in keys.items()}).sliding_windows == ()


@pytest.mark.parametrize("pattern", [[True], -1, "all", 2.5])
def test_a_window_pattern_that_does_not_fit_the_layers_is_refused(pattern: object) -> None:
    keys = {"sliding_window": 512, "sliding_window_pattern": pattern}
    with pytest.raises(ModelFormatError, match="must name 30 layers"):
        gguf(**{f"llama.attention.{key}": value for key, value in keys.items()})


def test_a_qwen_file_with_a_window_must_say_which_layers_it_is_for() -> None:
    keys = {key.replace("llama.", "qwen2."): value for key, value in SMOLLM2_METADATA.items()}
    keys |= {"general.architecture": "qwen2", "qwen2.attention.sliding_window": 512}
    with pytest.raises(UnsupportedModelError, match="window of 512 tokens"):
        ModelConfig.from_gguf(keys)
    keys["qwen2.attention.sliding_window_pattern"] = 2
    assert ModelConfig.from_gguf(keys).sliding_windows[:2] == (512, None)


def test_equal_head_counts_given_as_a_list_are_one_number() -> None:
    assert gguf(**{"llama.attention.head_count_kv": [3, 3, 3]}).num_kv_heads == 3


def test_gguf_without_a_number_that_we_need_says_which() -> None:
    metadata = {k: v for k, v in SMOLLM2_METADATA.items() if k != "llama.block_count"}
    with pytest.raises(ModelFormatError, match=r"integer llama\.block_count, found nothing"):
        ModelConfig.from_gguf(metadata)
