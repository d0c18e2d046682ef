//! GGUF files made by hand: what their keys mean, and bad ones, of which each
//! kind is refused in its own words, by tensor or key, and at once.

use openwork_llm::Checkpoint;
use serde_json::{Value, json};

const U32: u32 = 4;
const F32: u32 = 6;
const STRING: u32 = 8;
const LIST: u32 = 9;

/// A GGUF file to spoil.
#[derive(Clone)]
struct File {
    version: u32,
    keys: Vec<(String, u32, Vec<u8>)>,
    /// Name, axes (fastest first), type, offset.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    counts: Option<(u64, u64)>,
    data: usize,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl File {
    /// A Llama with an embedding and one q projection, both F32.
    fn good() -> Self {
        Self::of("llama")
    }

    /// The same of another architecture.
    fn of(architecture: &str) -> Self {
        let mut file = Self { version: 3, keys: vec![], tensors: vec![], counts: None, data: 256 };
        file.set("general.architecture", STRING, &string(architecture));
        for (key, value) in [
            ("block_count", 1u32),
            ("embedding_length", 4),
            ("context_length", 16),
            ("feed_forward_length", 8),
            ("attention.head_count", 2),
        ] {
            file.set(&format!("{architecture}.{key}"), U32, &value.to_le_bytes());
        }
        let eps = 1e-5f32.to_le_bytes();
        file.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), F32, &eps);
        file.tensor("token_embd.weight", &[4, 8], 0, 0);
        file.tensor("blk.0.attn_q.weight", &[4, 4], 0, 128);
        file
    }

    fn set(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys.retain(|(name, ..)| name != key);
        self.keys.push((key.to_string(), kind, value.to_vec()));
    }

    fn tensor(&mut self, name: &str, axes: &[u64], kind: u32, offset: u64) {
        self.tensors.push((name.to_string(), axes.to_vec(), kind, offset));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        let (tensors, keys) =
            self.counts.unwrap_or((self.tensors.len() as u64, self.keys.len() as u64));
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        for (key, kind, value) in &self.keys {
            bytes.extend(string(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        for (name, axes, kind, offset) in &self.tensors {
            bytes.extend(string(name));
            bytes.extend((axes.len() as u32).to_le_bytes());
            axes.iter().for_each(|extent| bytes.extend(extent.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }
}

fn open(bytes: &[u8]) -> Result<Checkpoint, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).expect("the folder is writable");
    let place = format!("{}/", folder.path().display());
    Checkpoint::open(&path).map_err(|error| error.to_string().replace(&place, ""))
}

/// The words against the good file after `spoil`, without the file's name.
fn refusal(spoil: impl FnOnce(&mut File)) -> String {
    let mut file = File::good();
    spoil(&mut file);
    let words = open(&file.bytes()).expect_err("a bad file was opened");
    words.strip_prefix("m.gguf: ").expect("the file is named").to_string()
}

/// The config and the notes of the good file with these keys.
fn config(architecture: &str, keys: &[(&str, u32, Vec<u8>)]) -> (Value, Vec<String>) {
    let mut file = File::of(architecture);
    if architecture == "gemma3" {
        file.set("gemma3.attention.sliding_window", U32, &8u32.to_le_bytes());
    }
    for (key, kind, value) in keys {
        file.set(&format!("{architecture}.{key}"), *kind, value);
    }
    let model = open(&file.bytes()).expect("a good file");
    (model.config().clone(), model.notes().to_vec())
}

fn float(key: &'static str, value: f32) -> (&'static str, u32, Vec<u8>) {
    (key, F32, value.to_le_bytes().to_vec())
}

fn number(key: &'static str, value: u32) -> (&'static str, u32, Vec<u8>) {
    (key, U32, value.to_le_bytes().to_vec())
}

fn list(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

#[test]
fn the_good_file_opens_in_both_versions() {
    for version in [2, 3] {
        let model = open(&File { version, ..File::good() }.bytes()).unwrap();
        assert_eq!(
            model.names().collect::<Vec<_>>(),
            ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
        );
        assert_eq!(model.config()["vocab_size"], 8);
        assert_eq!(model.config()["tie_word_embeddings"], true);
        assert!(
            model.tokenizer().unwrap_err().to_string().ends_with(
                "the tokenizer cannot be built: the file has no \"tokenizer.ggml.tokens\""
            )
        );
    }
}

#[test]
fn every_name_of_a_rotation_is_read() {
    let base = |architecture, keys: &[_]| config(architecture, keys).0["rope_theta"].clone();
    assert_eq!(base("llama", &[]), 1e4);
    assert_eq!(base("llama", &[number("rope.freq_base", 500_000)]), 5e5);
    assert_eq!(base("gemma3", &[]), 1e6);
    assert_eq!(base("gemma3", &[float("rope.global.freq_base", 2e6)]), 2e6);
    let local = |keys: &[_]| config("gemma3", keys).0["rope_local_base_freq"].clone();
    assert_eq!(local(&[]), 1e4);
    assert_eq!(local(&[float("rope.freq_base_swa", 5e3)]), 5e3);
    assert_eq!(local(&[float("rope.local.freq_base", 6e3)]), 6e3);

    let scaling = |keys: &[_]| config("llama", keys).0["rope_scaling"].clone();
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    assert_eq!(scaling(&[float("rope.scale_linear", 4.0)]), linear);
    assert_eq!(scaling(&[float("rope.scaling.factor", 4.0)]), linear);
    // The new name counts where both are there.
    let both = [float("rope.scaling.factor", 1.0), float("rope.scale_linear", 4.0)];
    assert_eq!(scaling(&both), Value::Null);
    assert_eq!(scaling(&[float("rope.scaling.attn_factor", 1.0)]), Value::Null);
}

#[test]
fn yarn_is_read_with_its_factor() {
    let yarn = ("rope.scaling.type", STRING, string("yarn"));
    let original = number("rope.scaling.original_context_length", 8);
    let scaling = |keys: &[(&'static str, u32, Vec<u8>)]| {
        let both = [yarn.clone(), float("rope.scaling.factor", 2.0), original.clone()];
        config("qwen3", &[&both, keys].concat()).0["rope_scaling"].clone()
    };
    let plain = json!({
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8,
        "beta_fast": 32.0, "beta_slow": 1.0,
    });
    assert_eq!(scaling(&[]), plain);
    let with = |keys: &[(&str, Value)]| {
        let mut with = plain.clone();
        keys.iter().for_each(|(key, value)| with[key] = value.clone());
        with
    };
    assert_eq!(
        scaling(&[float("rope.scaling.yarn_log_multiplier", 1.0)]),
        with(&[("mscale", json!(1.0)), ("mscale_all_dim", json!(1.0))])
    );
    assert_eq!(
        scaling(&[float("rope.scaling.yarn_attn_factor", 1.25)]),
        with(&[("attention_factor", json!(1.25))])
    );
    assert_eq!(
        scaling(&[float("rope.scaling.attn_factor", 0.5)])["attention_factor"],
        json!(0.5 * (0.1 * 2f64.ln() + 1.0))
    );
    let mut file = File::of("qwen3");
    file.set("qwen3.rope.scaling.type", STRING, &yarn.2);
    file.set("qwen3.rope.scaling.yarn_ext_factor", F32, &0.5f32.to_le_bytes());
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: metadata \"qwen3.rope.scaling.yarn_ext_factor\": is 0.5, which is not supported"
    );
}

/// A Qwen3 with three experts of width 2, two of which a token is routed to.
fn with_experts() -> File {
    let mut file = File::of("qwen3moe");
    for (key, value) in
        [("expert_count", 3u32), ("expert_used_count", 2), ("expert_feed_forward_length", 2)]
    {
        file.set(&format!("qwen3moe.{key}"), U32, &value.to_le_bytes());
    }
    file.data = 1024;
    file.tensor("blk.0.ffn_gate_inp.weight", &[4, 3], 0, 192);
    file.tensor("blk.0.ffn_gate_exps.weight", &[4, 2, 3], 0, 256);
    file.tensor("blk.0.ffn_up_exps.weight", &[4, 2, 3], 0, 384);
    file.tensor("blk.0.ffn_down_exps.weight", &[2, 4, 3], 0, 512);
    file
}

/// The words against a file with experts after `spoil`.
fn expert_refusal(spoil: impl FnOnce(&mut File)) -> String {
    let mut file = with_experts();
    spoil(&mut file);
    let words = open(&file.bytes()).expect_err("bad experts were opened");
    words.strip_prefix("m.gguf: ").expect("the file is named").to_string()
}

#[test]
fn experts_that_do_not_fit_are_refused_by_name() {
    let model = open(&with_experts().bytes()).expect("good experts");
    assert_eq!(model.names().filter(|name| name.contains("mlp.experts.")).count(), 9);
    let set = |key: &'static str, value: u32| {
        move |file: &mut File| file.set(&format!("qwen3moe.{key}"), U32, &value.to_le_bytes())
    };
    for (spoil, words) in [
        (set("expert_count", 0), "metadata \"qwen3moe.expert_count\": is 0"),
        (
            set("expert_count", 5000),
            "metadata \"qwen3moe.expert_count\": is 5000, which exceeds the limit of 4096",
        ),
        (
            set("expert_count", 4),
            "tensor \"blk.0.ffn_gate_inp.weight\" has shape [3, 4], but the metadata imply [4, 4]",
        ),
        (set("expert_used_count", 0), "metadata \"qwen3moe.expert_used_count\": is 0"),
        (
            set("expert_used_count", 4),
            "metadata \"qwen3moe.expert_used_count\": is 4, which exceeds expert_count = 3",
        ),
        (
            set("expert_feed_forward_length", 3),
            "tensor \"blk.0.ffn_gate_exps.weight\" has shape [3, 2, 4], but the metadata imply \
             [3, 3, 4]",
        ),
        (set("block_count", 2), "none of the 6 tensors is called \"blk.1.ffn_gate_inp.weight\""),
    ] {
        assert_eq!(expert_refusal(spoil), words);
    }
    assert_eq!(
        expert_refusal(|file| file.keys.retain(|(key, ..)| key != "qwen3moe.expert_used_count")),
        "metadata \"qwen3moe.expert_used_count\": is missing"
    );
    // NVFP4, which is not read.
    assert!(expert_refusal(|file| file.tensors[4].2 = 40).starts_with(
        "tensor \"blk.0.ffn_up_exps.weight\" has the unsupported type NVFP4 (supported: F64,"
    ));
    assert_eq!(
        expert_refusal(|file| file.tensors[4].1 = vec![4, 2, 2]),
        "tensor \"blk.0.ffn_up_exps.weight\" has shape [2, 2, 4], but the metadata imply [3, 2, 4]"
    );
    assert_eq!(
        expert_refusal(|file| drop(file.tensors.remove(5))),
        "none of the 5 tensors is called \"blk.0.ffn_down_exps.weight\""
    );
    assert_eq!(
        expert_refusal(|file| drop(file.tensors.remove(2))),
        "none of the 5 tensors is called \"blk.0.ffn_gate_inp.weight\""
    );
}

/// A Qwen3.5 with one layer, whose delta net has two heads of keys and four of values, of size 2.
fn with_delta_net() -> File {
    let mut file = File::of("qwen35");
    for (key, value) in [
        ("ssm.conv_kernel", 3u32),
        ("ssm.state_size", 2),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 8),
    ] {
        file.set(&format!("qwen35.{key}"), U32, &value.to_le_bytes());
    }
    file.data = 1024;
    file.tensors.truncate(1);
    file.tensor("blk.0.attn_qkv.weight", &[4, 16], 0, 128);
    file.tensor("blk.0.ssm_a", &[4], 0, 384);
    file.tensor("blk.0.ssm_conv1d.weight", &[3, 16], 0, 416);
    file
}

#[test]
fn delta_nets_that_do_not_fit_are_refused_by_name() {
    let model = open(&with_delta_net().bytes()).expect("a good delta net");
    assert_eq!(model.config()["layer_types"], json!(["linear_attention"]));
    let convolution = model.tensor("model.layers.0.linear_attn.conv1d.weight").expect("a tensor");
    assert_eq!(convolution.shape(), [16, 1, 3]);
    let refusal = |spoil: &dyn Fn(&mut File)| {
        let mut file = with_delta_net();
        spoil(&mut file);
        let words = open(&file.bytes()).expect_err("a bad delta net was opened");
        words.strip_prefix("m.gguf: ").expect("the file is named").to_string()
    };
    for (key, value, words) in [
        ("ssm.state_size", 0u32, "metadata \"qwen35.ssm.state_size\": is 0"),
        (
            "ssm.inner_size",
            9,
            "metadata \"qwen35.ssm.inner_size\": is 9, not a multiple of ssm.time_step_rank = 4",
        ),
        (
            "ssm.group_count",
            3,
            "metadata \"qwen35.ssm.group_count\": is 3, which does not divide \
             ssm.time_step_rank = 4",
        ),
        (
            "ssm.state_size",
            3,
            "tensor \"blk.0.attn_qkv.weight\" has shape [16, 4], but the metadata imply 20 rows",
        ),
        ("full_attention_interval", 0, "metadata \"qwen35.full_attention_interval\": is 0"),
        (
            "nextn_predict_layers",
            1,
            "metadata \"qwen35.nextn_predict_layers\": is 1, but block_count is 1",
        ),
    ] {
        let set = |file: &mut File| file.set(&format!("qwen35.{key}"), U32, &value.to_le_bytes());
        assert_eq!(refusal(&set), words);
    }
    assert_eq!(
        refusal(&|file| file.keys.retain(|(key, ..)| key != "qwen35.ssm.conv_kernel")),
        "metadata \"qwen35.ssm.conv_kernel\": is missing"
    );
    assert_eq!(
        refusal(&|file| file.tensors[2].1 = vec![3]),
        "tensor \"blk.0.ssm_a\" has shape [3], but the metadata imply 4 rows"
    );
    assert_eq!(
        refusal(&|file| file.tensors[3].1 = vec![3, 1, 16]),
        "tensor \"blk.0.ssm_conv1d.weight\" has shape [16, 1, 3], not [channels, kernel]"
    );
    let flags = list(7, 3, &[1, 1, 1]);
    assert_eq!(
        refusal(&|file| file.set("qwen35.attention.recurrent_layers", LIST, &flags)),
        "metadata \"qwen35.attention.recurrent_layers\": has 3 entries for 1 layers"
    );
}

/// Layers that predict further tokens are not part of the model.
#[test]
fn further_layers_are_ignored_with_a_note() {
    let mut file = with_delta_net();
    file.set("qwen35.block_count", U32, &2u32.to_le_bytes());
    file.set("qwen35.nextn_predict_layers", U32, &1u32.to_le_bytes());
    file.set("qwen35.attention.recurrent_layers", LIST, &list(7, 2, &[1, 0]));
    file.tensor("blk.1.attn_norm.weight", &[4], 0, 640);
    file.tensor("blk.1.nextn.enorm.weight", &[4], 0, 672);
    let model = open(&file.bytes()).expect("a good file");
    assert_eq!(model.config()["num_hidden_layers"], 1);
    assert_eq!(model.config()["layer_types"], json!(["linear_attention"]));
    assert_eq!(model.notes(), ["2 tensors ignored: layers from 1 on predict further tokens"]);
}

/// gpt-oss has parameters of RoPE by default, which a file without scaling does not mean.
#[test]
fn a_file_without_scaling_has_none() {
    let window = number("attention.sliding_window", 8);
    let mut file = File::of("gpt-oss");
    let keys = [number("expert_count", 2), number("expert_used_count", 1), window];
    for (key, kind, value) in keys {
        file.set(&format!("gpt-oss.{key}"), kind, &value);
    }
    file.data = 1024;
    file.tensor("blk.0.ffn_gate_inp.weight", &[4, 2], 0, 192);
    file.tensor("blk.0.ffn_gate_exps.weight", &[4, 8, 2], 0, 224);
    file.tensor("blk.0.ffn_up_exps.weight", &[4, 8, 2], 0, 480);
    file.tensor("blk.0.ffn_down_exps.weight", &[8, 4, 2], 0, 736);
    let rope = json!({"rope_type": "default", "rope_theta": 10000.0});
    assert_eq!(open(&file.bytes()).unwrap().config()["rope_parameters"], rope);
    file.tensor("blk.0.ffn_up_exps.bias", &[8, 3], 0, 992);
    file.data = 1120;
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: tensor \"blk.0.ffn_up_exps.bias\" has shape [3, 8], but expert_count is 2"
    );
}

/// A Gemma 4 with a sliding layer, of heads of size 2, and a global one, of size 4, whose values
/// are its keys.
fn with_kinds() -> File {
    let mut file = File::of("gemma4");
    let mut set = |key: &str, kind, value: &[u8]| file.set(&format!("gemma4.{key}"), kind, value);
    for (key, value) in [
        ("block_count", 2u32),
        ("attention.sliding_window", 8),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
        ("attention.key_length_swa", 2),
        ("attention.value_length_swa", 2),
        ("rope.dimension_count", 4),
        ("rope.dimension_count_swa", 2),
    ] {
        set(key, U32, &value.to_le_bytes());
    }
    set("attention.sliding_window_pattern", LIST, &list(7, 2, &[1, 0]));
    file.data = 1024;
    file.tensors.truncate(1);
    file.tensor("rope_freqs.weight", &[2], 0, 128);
    file.tensor("blk.0.attn_v.weight", &[4, 4], 0, 160);
    file
}

/// Signed numbers of a list.
fn integers(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
    list(5, values.len() as u64, &bytes)
}

#[test]
fn layers_of_two_kinds_that_do_not_fit_are_refused_by_name() {
    let refusal = |spoil: &dyn Fn(&mut File)| {
        let mut file = with_kinds();
        spoil(&mut file);
        let words = open(&file.bytes()).expect_err("a bad file was opened");
        words.strip_prefix("m.gguf: ").expect("the file is named").to_string()
    };
    let list_of = |key: &'static str, values: &'static [i32]| {
        move |file: &mut File| file.set(&format!("gemma4.{key}"), LIST, &integers(values))
    };
    // All factors are 0 in these files of zeros.
    assert_eq!(
        refusal(&|_| {}),
        "tensor \"rope_freqs.weight\" contains RoPE factors other than Gemma 4's, which is not \
         supported"
    );
    assert_eq!(
        refusal(&|file| drop(file.tensors.remove(1))),
        "the file has no tensor \"rope_freqs.weight\""
    );
    let linear = |file: &mut File| {
        file.set("gemma4.rope.scaling.type", STRING, &string("linear"));
        file.set("gemma4.rope.scaling.factor", F32, &2f32.to_le_bytes());
    };
    assert_eq!(
        refusal(&linear),
        "metadata \"gemma4.rope.scaling.type\": is \"linear\", which is not supported"
    );
    for (key, values, words) in [
        ("attention.head_count_kv", &[1][..], "has 1 entries for 2 layers"),
        ("attention.head_count_kv", &[1, 0], "has entries below 1"),
        ("attention.head_count_kv", &[2, 3], "is 3, which does not divide head_count = 2"),
        ("feed_forward_length", &[8, 12], "is not one width, or twice it from layer 2 on"),
    ] {
        let spoil = list_of(key, values);
        assert_eq!(refusal(&spoil), format!("metadata \"gemma4.{key}\": {words}"));
    }
    let three = |file: &mut File| {
        file.set("gemma4.block_count", U32, &3u32.to_le_bytes());
        let flags = list(7, 3, &[1, 1, 0]);
        file.set("gemma4.attention.sliding_window_pattern", LIST, &flags);
        file.set("gemma4.attention.head_count_kv", LIST, &integers(&[1, 2, 1]));
    };
    assert_eq!(
        refusal(&three),
        "metadata \"gemma4.attention.head_count_kv\": differs between layers of one kind, which \
         is not supported"
    );
    for (key, value, words) in [
        ("attention.shared_kv_layers", 2u32, "is 2, but block_count is 2"),
        (
            "attention.key_length_swa",
            3,
            "is 2, but the head size is 3; different sizes are not supported",
        ),
        (
            "rope.dimension_count",
            2,
            "is 2, but the head size is 4; different sizes are not supported",
        ),
    ] {
        let spoil = |file: &mut File| file.set(&format!("gemma4.{key}"), U32, &value.to_le_bytes());
        let named = refusal(&spoil);
        assert!(named.ends_with(words), "{named}");
    }
}

/// One tensor per expert: a missing one is named, and one too many.
#[test]
fn separate_experts_are_all_there() {
    let separate = |file: &mut File| {
        file.tensors.truncate(4);
        file.tensors.remove(3);
        for (i, part) in ["ffn_gate", "ffn_up", "ffn_down"].into_iter().enumerate() {
            for expert in 0..3 {
                let axes = if part == "ffn_down" { [2, 4] } else { [4, 2] };
                let offset = 256 + 32 * (3 * i + expert) as u64;
                file.tensor(&format!("blk.0.{part}.{expert}.weight"), &axes, 0, offset);
            }
        }
    };
    let mut file = with_experts();
    separate(&mut file);
    let model = open(&file.bytes()).expect("good experts");
    assert!(model.has("model.layers.0.mlp.experts.2.down_proj.weight"));
    assert_eq!(
        expert_refusal(|file| {
            separate(file);
            file.tensors.retain(|(name, ..)| name != "blk.0.ffn_up.1.weight");
        }),
        "none of the 11 tensors is called \"blk.0.ffn_up.1.weight\""
    );
    assert_eq!(
        expert_refusal(|file| {
            separate(file);
            file.tensor("blk.0.ffn_up.3.weight", &[4, 2], 0, 768);
        }),
        "unexpected tensor \"blk.0.ffn_up.3.weight\" for architecture \"qwen3moe\""
    );
    // Both spellings of the same experts.
    assert_eq!(
        expert_refusal(|file| file.tensor("blk.0.ffn_up.1.weight", &[4, 2], 0, 768)),
        "tensor \"model.layers.0.mlp.experts.1.up_proj.weight\" is listed twice"
    );
}

/// The same architecture holds several families.
#[test]
fn families_that_share_a_name_are_told_apart() {
    let model_type = |architecture, keys: &[_]| config(architecture, keys).0["model_type"].clone();
    let window = number("attention.sliding_window", 8);
    assert_eq!(model_type("llama", &[]), "llama");
    assert_eq!(model_type("llama", std::slice::from_ref(&window)), "mistral");
    assert_eq!(model_type("olmo2", &[]), "olmo2");
    assert_eq!(model_type("olmo2", &[window]), "olmo3");
    assert_eq!(model_type("mistral3", &[]), "mistral");
    let yarn = ("rope.scaling.type", STRING, string("yarn"));
    let scaled = [yarn, float("attention.temperature_scale", 0.1)];
    assert_eq!(model_type("mistral3", &scaled), "ministral3");
    let mut file = File::of("mistral3");
    file.set("mistral3.attention.temperature_scale", F32, &0.1f32.to_le_bytes());
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: metadata \"mistral3.rope.scaling.type\": is not \"yarn\", \
         which attention.temperature_scale needs"
    );
    // Granite without rotation.
    let mut file = File::of("granite");
    file.set("granite.rope.scaling.finetuned", 7, &[0]);
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: metadata \"granite.rope.scaling.finetuned\": is false, which is not supported"
    );
}

#[test]
fn fused_linear_layers_that_do_not_fit_are_refused_by_name() {
    let refusal = |name: &str, axes: &[u64]| {
        let mut file = File::of("phi3");
        file.tensors.truncate(1);
        file.tensor(name, axes, 0, 128);
        open(&file.bytes()).unwrap_err()
    };
    assert_eq!(
        refusal("blk.0.attn_qkv.weight", &[4, 8]),
        "m.gguf: tensor \"blk.0.attn_qkv.weight\" has 8 rows, not the 12 of q, k and v"
    );
    assert_eq!(
        refusal("blk.0.ffn_up.weight", &[4, 7]),
        "m.gguf: tensor \"blk.0.ffn_up.weight\" has 7 rows, not as many of gate as of up"
    );
    let mut file = File::of("phi3");
    file.set("phi3.embedding_length", U32, &64u32.to_le_bytes());
    file.set("phi3.attention.head_count", U32, &32u32.to_le_bytes());
    file.set("phi3.attention.head_count_kv", U32, &8u32.to_le_bytes());
    file.tensors.truncate(1);
    // Blocks of 32 entries: q has two, k and v half a block each.
    file.tensor("blk.0.attn_qkv.bias", &[96], 8, 128);
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: tensor \"blk.0.attn_qkv.bias\" of Q8_0 is cut within a block"
    );
    assert_eq!(
        refusal("rope_factors_long.weight", &[1]),
        "m.gguf: the file has no tensor \"rope_factors_short.weight\""
    );
    let mut file = File::of("phi3");
    file.set("phi3.rope.dimension_count", U32, &4u32.to_le_bytes());
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: metadata \"phi3.rope.dimension_count\": is 4, not an even number of the 2 \
         entries of a head"
    );
}

#[test]
fn gemmas_sliding_layers_are_those_of_the_file() {
    let key = "attention.sliding_window_pattern";
    assert_eq!(config("gemma3", &[]).0["sliding_window_pattern"], 6);
    assert_eq!(config("gemma3", &[number(key, 3)]).0["sliding_window_pattern"], 3);
    let flags = |flags: &[u8]| (key, LIST, list(7, flags.len() as u64, flags));
    let one = config("gemma3", &[flags(&[1])]).0;
    assert_eq!(one["layer_types"], json!(["sliding_attention"]));
    assert!(one["sliding_window_pattern"].is_null());
    let mut file = File::of("gemma3");
    file.set("gemma3.attention.sliding_window", U32, &8u32.to_le_bytes());
    file.set("gemma3.attention.sliding_window_pattern", LIST, &flags(&[1, 0]).2);
    assert_eq!(
        open(&file.bytes()).unwrap_err(),
        "m.gguf: metadata \"gemma3.attention.sliding_window_pattern\": has 2 entries for 1 layers"
    );
}

#[test]
fn a_key_that_nobody_reads_is_noted() {
    let known = [number("vocab_size", 8), number("rope.scaling.original_context_length", 64)];
    assert_eq!(config("llama", &known).1, Vec::<String>::new());
    assert_eq!(
        config("llama", &[number("wings", 2), float("rope.freq_base_swa", 5e3)]).1,
        [
            "metadata \"llama.rope.freq_base_swa\" = 5000 is unknown and was ignored",
            "metadata \"llama.wings\" = 2 is unknown and was ignored"
        ]
    );
}

#[test]
fn every_shorter_file_is_refused() {
    let whole = File { data: 192, ..File::good() }.bytes();
    for length in 0..whole.len() {
        let words = open(&whole[..length]).expect_err("a truncated file was opened");
        assert!(words.starts_with("m.gguf: "), "{words}");
    }
    assert_eq!(
        open(&whole[..12]).unwrap_err(),
        "m.gguf: the file ends after 12 bytes, inside the list of tensors, which needs 16 bytes; \
         it is truncated or damaged"
    );
    assert_eq!(
        open(&whole[..whole.len() - 1]).unwrap_err(),
        "m.gguf: tensor \"blk.0.attn_q.weight\" at bytes 128..192 exceeds the file's 191 bytes \
         of data; the file is truncated or damaged"
    );
}

#[test]
fn tensors_without_numbers_lie_within_the_file_too() {
    let mut file = File { data: 0, ..File::good() };
    for (_, axes, _, offset) in &mut file.tensors {
        (axes[0], *offset) = (0, 0);
    }
    // Padded to the place where the data would begin.
    let whole = file.bytes();
    open(&whole).expect("nothing is missing");
    let words = open(&whole[..whole.len() - 1]).expect_err("a place past the end was given");
    assert!(words.contains("inside the padding before the tensors' data"), "{words}");
}

#[test]
fn a_file_of_another_kind_is_refused() {
    assert_eq!(
        open(b"not a model").unwrap_err(),
        "m.gguf: not a model; expected a folder with config.json and safetensors, or a .gguf file"
    );
    assert_eq!(
        refusal(|file| file.version = 1),
        "unsupported GGUF version 1; openwork reads versions 2 and 3, little-endian"
    );
    assert!(
        refusal(|file| file.version = 3 << 24).starts_with("unsupported GGUF version 50331648;")
    );
    assert_eq!(
        refusal(|file| file.set("general.architecture", STRING, &string("mamba"))),
        "the GGUF architecture \"mamba\" is not supported \
         (supported: llama, qwen2, qwen3, gemma3, gemma2, qwen3moe, qwen2moe, olmoe, olmo2, phi3, \
         smollm3, granite, glm4, mistral3, qwen35, qwen35moe, gpt-oss, gemma4)"
    );
    assert_eq!(
        refusal(|file| {
            file.set("split.count", U32, &3u32.to_le_bytes());
            file.set("split.no", U32, &1u32.to_le_bytes());
        }),
        "part 2 of 3 of a split model; merge the parts first with \
         `llama-gguf-split --merge FIRST OUT`"
    );
    assert_eq!(
        refusal(|file| drop(file.keys.remove(0))),
        "metadata \"general.architecture\": is missing"
    );
}

#[test]
fn absurd_counts_and_lengths_are_refused_at_once() {
    for huge in [u64::MAX, 1 << 60, 1 << 32] {
        let words = refusal(|file| file.counts = Some((huge, 7)));
        assert!(words.starts_with(&format!("the list of tensors has {huge} entries, more than")));
        let words = refusal(|file| file.counts = Some((2, huge)));
        assert!(
            words.starts_with(&format!("the metadata has {huge} entries, more than")),
            "{words}"
        );
        let words = refusal(|file| file.set("x", STRING, &huge.to_le_bytes()));
        assert!(words.contains("inside the value of \"x\""), "{words}");
        for kind in [0, U32, STRING] {
            let words = refusal(|file| file.set("x", LIST, &list(kind, huge, &[])));
            assert!(
                words.starts_with(&format!("the list \"x\" has {huge} entries, more")),
                "{words}"
            );
        }
        let words = refusal(|file| file.tensor("t", &[huge, huge], 0, 0));
        assert!(words.ends_with("too many elements for any file"), "{words}");
        let words = refusal(|file| file.tensor("t", &[0, huge, huge], 0, 0));
        assert!(words.ends_with("too many elements for any file"), "{words}");
        let words = refusal(|file| file.tensor("t", &[4], 0, huge & !31));
        assert!(words.starts_with("tensor \"t\" at bytes"), "{words}");
    }
    // A list of strings whose second is longer than the file.
    let strings = [string("a"), (1u64 << 50).to_le_bytes().to_vec()].concat();
    let words = refusal(|file| file.set("x", LIST, &list(STRING, 2, &strings)));
    assert!(words.contains("inside the value of \"x\""), "{words}");
}

#[test]
fn a_bad_key_is_refused_by_name() {
    assert_eq!(
        refusal(|file| file.set("x", 13, &[0; 8])),
        "metadata \"x\": has type 13, which GGUF does not define"
    );
    assert_eq!(
        refusal(|file| file.set("x", LIST, &list(LIST, 1, &[]))),
        "metadata \"x\": is a list of lists, which is not supported"
    );
    assert_eq!(
        refusal(|file| file.set("x", 7, &[2])),
        "metadata \"x\": is the boolean 2, neither 0 nor 1"
    );
    let not_utf8 = [&1u64.to_le_bytes()[..], &[0xff]].concat();
    assert_eq!(refusal(|file| file.set("x", STRING, &not_utf8)), "metadata \"x\": is not UTF-8");
    assert_eq!(
        refusal(|file| file.keys.push(("llama.block_count".into(), U32, vec![0; 4]))),
        "metadata \"llama.block_count\": appears twice"
    );
    assert_eq!(
        refusal(|file| file.set("llama.block_count", U32, &[0; 4])),
        "metadata \"llama.block_count\": is 0"
    );
    assert_eq!(
        refusal(|file| file.set("llama.attention.head_count", LIST, &list(U32, 1, &[2, 0, 0, 0]))),
        "metadata \"llama.attention.head_count\": is a list of 1 U32, \
         not an integer below 2^32"
    );
    assert_eq!(
        refusal(|file| file.set("llama.attention.head_count_kv", U32, &3u32.to_le_bytes())),
        "metadata \"llama.attention.head_count_kv\": is 3, which does not divide head_count = 2"
    );
    assert_eq!(
        refusal(|file| file.set("general.alignment", U32, &12u32.to_le_bytes())),
        "metadata \"general.alignment\": is 12, not a power of two"
    );
}

#[test]
fn an_option_that_changes_the_mathematics_is_refused_by_name() {
    for (key, value) in [("expert_gating_func", 2u32), ("leading_dense_block_count", 1)] {
        assert_eq!(
            refusal(|file| file.set(&format!("llama.{key}"), U32, &value.to_le_bytes())),
            format!("metadata \"llama.{key}\": is {value}, which is not supported")
        );
    }
    assert_eq!(
        refusal(|file| {
            let sections = [3u32, 3, 2, 0].map(u32::to_le_bytes).concat();
            file.set("llama.rope.dimension_sections", LIST, &list(5, 4, &sections));
        }),
        "metadata \"llama.rope.dimension_sections\": is a list of 4 I32, which is not supported"
    );
    assert_eq!(
        refusal(|file| file.set("llama.final_logit_softcapping", F32, &30f32.to_le_bytes())),
        "metadata \"llama.final_logit_softcapping\": is 30, which is not supported"
    );
    assert_eq!(
        refusal(|file| file.set("llama.rope.scaling.attn_factor", F32, &1.5f32.to_le_bytes())),
        "metadata \"llama.rope.scaling.attn_factor\": is 1.5, which is not supported"
    );
    assert_eq!(
        refusal(|file| file.set("llama.rope.scaling.type", STRING, &string("dynamic"))),
        "metadata \"llama.rope.scaling.type\": is \"dynamic\", which is not supported"
    );
    assert_eq!(
        refusal(|file| file.set("llama.rope.dimension_count", U32, &4u32.to_le_bytes())),
        "metadata \"llama.rope.dimension_count\": is 4, but the head size is 2; \
         different sizes are not supported"
    );
    assert_eq!(
        refusal(|file| file.tensor("rope_freqs.weight", &[1], 0, 192)),
        "tensor \"rope_freqs.weight\" contains RoPE factors other than Llama 3's, \
         which is not supported"
    );
}

#[test]
fn a_bad_tensor_is_refused_by_name() {
    assert_eq!(
        refusal(|file| file.tensors[1].2 = 19),
        "tensor \"blk.0.attn_q.weight\" has the unsupported type IQ1_S (supported: F64, \
         F32, F16, BF16, I64, I32, I16, I8, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, \
         Q2_K, Q3_K, IQ2_XXS, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4)"
    );
    assert!(refusal(|file| file.tensors[1].2 = 77).contains("has the unsupported type number 77"));
    assert_eq!(
        refusal(|file| file.tensors[1].2 = 8),
        "tensor \"blk.0.attn_q.weight\" has shape [4, 4]: \
         the last axis is not a multiple of the type's block"
    );
    assert_eq!(
        refusal(|file| file.tensors[1].3 = 96),
        "tensor \"blk.0.attn_q.weight\" at bytes 96..160 overlaps tensor \"token_embd.weight\", \
         which ends at byte 128"
    );
    assert_eq!(
        refusal(|file| file.tensors[1].3 = 130),
        "tensor \"blk.0.attn_q.weight\" starts at byte 130, not a multiple of 32"
    );
    assert_eq!(
        refusal(|file| file.tensors[1].0 = "token_embd.weight".into()),
        "tensor \"token_embd.weight\" is listed twice"
    );
    assert_eq!(
        refusal(|file| file.tensors[1].0 = "blk.0.ssm_in.weight".into()),
        "unexpected tensor \"blk.0.ssm_in.weight\" for architecture \"llama\""
    );
    assert_eq!(
        refusal(|file| file.tensors[1].1 = vec![1; 5]),
        "tensor \"blk.0.attn_q.weight\" has 5 axes, which exceeds the limit of 4"
    );
    assert_eq!(
        refusal(|file| file.tensors[1].1 = vec![4, 3]),
        "tensor \"blk.0.attn_q.weight\" has 3 rows, not 2 heads of an even number of rows"
    );
    assert_eq!(
        refusal(|file| drop(file.tensors.remove(0))),
        "the file has no matrix \"token_embd.weight\""
    );
}

/// Gemma 4's files list merges of pieces in which spaces are written out.
#[test]
fn merges_of_sentence_piece_may_be_listed() {
    let read = |merges: &[&str]| {
        let mut file = File::good();
        let texts = |texts: &[&str]| {
            let all: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
            list(STRING, texts.len() as u64, &all)
        };
        let key = |key: &str| format!("tokenizer.ggml.{key}");
        let tokens = ["<bos>", "\u{2581}", "a", "b", "ab", "\u{2581}ab", "<0xC3>", "<0xA9>"];
        file.set(&key("model"), STRING, &string("gemma4"));
        file.set(&key("tokens"), LIST, &texts(&tokens));
        file.set(&key("token_type"), LIST, &integers(&[3, 1, 1, 1, 1, 1, 6, 6]));
        file.set(&key("merges"), LIST, &texts(merges));
        file.set(&key("bos_token_id"), U32, &0u32.to_le_bytes());
        let model = open(&file.bytes()).unwrap();
        model.tokenizer().map_err(|error| error.to_string())
    };
    let tokenizer = read(&["a b", "\u{2581} ab"]).unwrap();
    let ids = tokenizer.encode("a ab\u{e9}b").unwrap();
    assert_eq!((&ids[..], tokenizer.adds_bos()), (&[2, 5, 6, 7, 3][..], true));
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a ab\u{e9}b");
    let words = read(&["a c"]).err().unwrap();
    assert!(words.ends_with("merge 0, \"a c\", does not join two tokens into a third"), "{words}");
}

#[test]
fn scores_and_types_of_tokens_are_checked() {
    const I32: u32 = 5;
    let refused = |scores: [f32; 2], marks: [i32; 2]| {
        let mut file = File::good();
        let key = |key: &str| format!("tokenizer.ggml.{key}");
        file.set(&key("model"), STRING, &string("llama"));
        file.set(&key("tokens"), LIST, &list(STRING, 2, &[string("a"), string("b")].concat()));
        let scores = scores.map(f32::to_le_bytes).concat();
        file.set(&key("scores"), LIST, &list(F32, 2, &scores));
        file.set(&key("token_type"), LIST, &list(I32, 2, &marks.map(i32::to_le_bytes).concat()));
        open(&file.bytes()).unwrap().tokenizer().err().map(|error| error.to_string())
    };
    assert_eq!(refused([0.0, -1.0], [1, 6]), None);
    let words = refused([0.0, f32::NAN], [1, 6]).unwrap();
    assert!(words.ends_with("the file does not have one score per token"), "{words}");
    let words = refused([0.0, -1.0], [1, 99]).unwrap();
    assert!(words.ends_with("GGUF has no token type 99"), "{words}");
}
