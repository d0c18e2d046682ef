//! Runs documented commands in a folder of their own. The input files that a
//! command names are made when it names them: tiny models, runs, texts, matrices.

use super::Simple;
use crate::common::{CommandOutput, Folder, Raw, f32s, hessian, noise, safetensors};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Flags whose value is an output, removed before the command runs.
const OUTPUTS: &[&str] = &["--out", "-o", "--svg", "--save", "--details"];
/// Commands whose positional arguments are models or folders of runs.
const ON_MODELS: &[&str] = &[
    "bench", "embed", "eval", "frontier", "generate", "inspect", "pack", "prune", "recover",
    "report", "shrink", "unpack",
];
/// Positions of the tiny model unless a command asks for longer windows.
const POSITIONS: usize = 40;
/// Layers of the tiny model: as many as SmolLM2 has, so that ranges of layers match.
const LAYERS: usize = 30;
const HIDDEN: usize = 48;
const CHANNELS: usize = 64;
const HEADS: usize = 6;
const KEY_HEADS: usize = 3;
const HEAD_DIM: usize = 16;
const VOCABULARY: usize = 288;
/// Rows and columns of the tiny matrices: a multiple of 8 and of 9, the numbers of
/// heads that examples have.
const SIDE: usize = 144;

pub struct Sandbox {
    folder: Folder,
    /// Models made here, with their numbers of positions.
    models: BTreeMap<String, usize>,
    /// Files of matrices made here.
    matrices: BTreeSet<String>,
    /// Flags that take a value, by command.
    value_flags: BTreeMap<String, BTreeSet<String>>,
}

impl Sandbox {
    pub fn new() -> Self {
        Self {
            folder: Folder::new(),
            models: BTreeMap::new(),
            matrices: BTreeSet::new(),
            value_flags: BTreeMap::new(),
        }
    }

    /// Runs the `openwork` command of a pipeline, if it has one. Its input is a file
    /// or what `echo` prints before it; commands after it are left out.
    pub fn run(&mut self, pipeline: &[Simple]) -> Option<CommandOutput> {
        let at = pipeline.iter().position(|command| command.words[0] == "openwork")?;
        let input = match at.checked_sub(1).map(|before| &pipeline[before].words) {
            Some(words) if words[0] == "echo" => words[1..].join(" ") + "\n",
            _ if pipeline[at].input.is_some() => "the pattern of openings".to_string(),
            _ => String::new(),
        };
        Some(self.run_command(&pipeline[at].words[1..], &input))
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) {
        self.folder.bytes(name, text.as_bytes());
    }

    /// Runs one command, after making its inputs.
    pub fn run_command(&mut self, words: &[String], input: &str) -> CommandOutput {
        // Absolute paths are meant to be inside the folder.
        let mut words: Vec<String> =
            words.iter().map(|word| word.trim_start_matches('/').to_string()).collect();
        quicken(&mut words);
        self.prepare(&words);
        if let Some(at) = words.iter().position(|word| word == "--resume") {
            let resume = words.remove(at);
            let output = self.execute(&words, "");
            assert_eq!(output.code, 0, "{words:?}: {}", output.err);
            words.insert(at, resume);
        }
        self.execute(&words, input)
    }

    fn execute(&self, words: &[String], input: &str) -> CommandOutput {
        let mut child = Command::new(env!("CARGO_BIN_EXE_openwork"))
            .args(words)
            .current_dir(self.folder.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read its input may close it first.
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        let ended = child.wait_with_output().unwrap();
        CommandOutput {
            code: ended.status.code().expect("it ended by itself"),
            out: String::from_utf8(ended.stdout).unwrap(),
            err: String::from_utf8(ended.stderr).unwrap(),
        }
    }

    /// Runs a command of this file's own, which must succeed.
    fn must(&self, args: &str) {
        let output = self.folder.run(args);
        assert_eq!(output.code, 0, "{args}: {}", output.err);
    }

    /// The flags of a command that take a value, from its help.
    pub fn value_flags(&mut self, command: &str) -> BTreeSet<String> {
        if let Some(known) = self.value_flags.get(command) {
            return known.clone();
        }
        let help = self.folder.run_list(&[command, "--help"]).out;
        let mut flags = BTreeSet::new();
        for line in help.lines().filter(|line| line.trim_start().starts_with('-')) {
            let head = line.trim_start().split("  ").next().unwrap_or_default();
            if head.contains('<') {
                let names = head.split([' ', ',']).filter(|word| word.starts_with('-'));
                flags.extend(names.map(str::to_string));
            }
        }
        self.value_flags.insert(command.to_string(), flags.clone());
        flags
    }

    /// Makes the inputs and removes the outputs that a command names.
    fn prepare(&mut self, words: &[String]) {
        let command = words[0].clone();
        let value_flags = self.value_flags(&command);
        let value_of = |flag: &str| {
            let at = words.iter().position(|word| word == flag)?;
            words.get(at + 1)
        };
        let positions = value_of("--seq-len").and_then(|n| n.parse().ok()).unwrap_or(POSITIONS);
        let mut files: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
        let mut flag: Option<&str> = None;
        let mut positionals = 0;
        for word in &words[1..] {
            if word.starts_with('-') {
                let takes_value = value_flags.contains(word) || OUTPUTS.contains(&word.as_str());
                flag = takes_value.then_some(word);
                continue;
            }
            let flag = flag.take();
            positionals += usize::from(flag.is_none());
            // The second argument of `generate` is a prompt.
            let is_model = flag.is_none()
                && ON_MODELS.contains(&command.as_str())
                && (command != "generate" || positionals == 1);
            if flag.is_some_and(|flag| OUTPUTS.contains(&flag)) {
                self.remove(word);
            } else if let Some((file, name)) = tensor_file(word) {
                let is_inputs =
                    flag == Some("--inputs") || (flag.is_none() && command == "hessian");
                files.entry(file).or_default().push((name, is_inputs));
            } else if flag == Some("--task") {
                self.task(word);
            } else if word.ends_with(".jsonl") || word.ends_with(".txt") {
                self.text(word);
            } else if word.ends_with(".toml") && !self.folder.path(word).exists() {
                self.write(word, "spec = \"2:4\"\nmethod = \"sparsegpt\"\n");
            } else if word.ends_with(".gguf")
                || is_model
                || flag.is_some_and(|flag| ["--model", "--reference"].contains(&flag))
            {
                self.model(&command, word, positions.max(POSITIONS));
            }
        }
        for (file, tensors) in files {
            // One that is not of this test is the output of an earlier command.
            if self.matrices.contains(&file) || !self.folder.path(&file).exists() {
                self.write_matrices(&file, &tensors);
                self.matrices.insert(file);
            }
        }
    }

    fn remove(&self, name: &str) {
        let path = self.folder.path(name);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else if path.exists() {
            std::fs::remove_file(path).unwrap();
        }
    }

    /// A task of a few documents.
    fn task(&self, name: &str) {
        let document = |context: &str| {
            json!({"context": context, "choices": [" a wall", " the value"], "gold": 1}).to_string()
        };
        self.write(name, &["the pattern of", "openings in"].map(document).join("\n"));
    }

    /// Some thousand tokens.
    fn text(&self, name: &str) {
        // A name on the Hub, which is used as a path because the path exists.
        if let Some(parent) = Path::new(name).parent() {
            std::fs::create_dir_all(self.folder.path(&parent.display().to_string())).unwrap();
        }
        let words = ["the", "pattern", "of", "openings", "in", "a", "wall", "value", "is", "name"];
        let line = |i: usize| {
            let words = (0..24).map(|j| words[(i * i + j * (i + 3) + j / 5) % words.len()]);
            words.collect::<Vec<_>>().join(" ")
        };
        let lines = (0..60).map(|i| match name.ends_with(".jsonl") {
            true => json!({"text": line(i)}).to_string(),
            false => line(i),
        });
        self.write(name, &lines.map(|line| line + "\n").collect::<String>());
    }

    /// A file of matrices, all of one size so that any of them fit each other.
    fn write_matrices(&self, file: &str, tensors: &[(String, bool)]) {
        let h = hessian(SIDE, 2 * SIDE, 7);
        let x = noise(2 * SIDE * SIDE, 3);
        let made = tensors.iter().map(|(name, is_inputs)| match is_inputs {
            true => f32s(name, &[2 * SIDE, SIDE], &x),
            // As weights or as a Hessian.
            false => f32s(name, &[SIDE, SIDE], &h),
        });
        let made: BTreeMap<&str, Raw<'_>> = made.map(|raw| (raw.0, raw)).collect();
        self.folder.file(file, &made.into_values().collect::<Vec<_>>());
    }

    /// A model of the kind that the command and the name ask for, unless an
    /// earlier command made it.
    fn model(&mut self, command: &str, name: &str, positions: usize) {
        let is_made_here = self.models.get(name).is_some_and(|&made| made >= positions);
        let is_output = self.folder.path(name).exists() && !self.models.contains_key(name);
        if name == "demo" || is_made_here || is_output {
            return;
        }
        let (path, quick) = (self.folder.path(name), "--calib text.txt --samples 4 --seq-len 32");
        if let Some(parent) = Path::new(name).parent() {
            std::fs::create_dir_all(self.folder.path(&parent.display().to_string())).unwrap();
        }
        self.remove(name);
        self.models.insert(name.to_string(), positions);
        let kind = match (command, name) {
            ("unpack", _) => "packed",
            ("shrink", _) => "masked",
            ("pack" | "report", _) => "pruned",
            (_, name) => {
                ["packed", "pruned"].into_iter().find(|k| name.starts_with(k)).unwrap_or("")
            }
        };
        self.text("text.txt");
        if name == "examples/experts" {
            return copy_model("olmoe", &path);
        }
        let dense = match command == "embed" || name.contains("mpnet") {
            true => |path: &Path, _| encoder(path),
            false => dense_model,
        };
        let base = format!("{name}.base");
        match kind {
            "" if !name.ends_with(".gguf") => return dense(&path, positions),
            _ => dense(&self.folder.path(&base), positions),
        }
        match kind {
            "masked" => {
                self.write("mask.toml", "spec = \"mlp keep 75%\"\nmethod = \"s-obd\"\n");
                self.must(&format!("prune {base} --recipe mask.toml {quick} --out {name}"));
            }
            "pruned" => self.must(&format!(
                "prune {base} --spec 2:4 --method magnitude {quick} --eval text.txt --out {name}"
            )),
            "packed" => {
                self.must(&format!(
                    "prune {base} --spec 2:4 --method magnitude {quick} --out {name}.pruned"
                ));
                self.must(&format!("pack {name}.pruned --out {name}"));
            }
            _ => self.must(&format!("pack {base} --format gguf-q8_0 --out {name}")),
        }
    }
}

/// Shortens recoveries, which take minutes with their default numbers of steps.
fn quicken(words: &mut Vec<String>) {
    if let Some(at) = words.iter().position(|word| word == "--recover") {
        let stages = words[at + 1].split('+').map(|stage| match stage.split('[').next() {
            Some("model") => "model[steps=2]".to_string(),
            name => format!("{}[epochs=1]", name.unwrap_or_default()),
        });
        words[at + 1] = stages.collect::<Vec<_>>().join("+");
    } else if words[0] == "recover" {
        words.extend(["--recover".to_string(), "blocks[epochs=1]+model[steps=2]".to_string()]);
    }
    if words.iter().any(|word| word == "--recover") && !words.iter().any(|word| word == "--samples")
    {
        words.extend(["--samples".to_string(), "4".to_string()]);
    }
}

/// The file and the tensor of `w.safetensors`, `f.safetensors:name` or
/// `member=f.safetensors:name`.
fn tensor_file(word: &str) -> Option<(String, String)> {
    let file = word.split_once('=').map_or(word, |(_, file)| file);
    let (file, name) = file.split_once(':').unwrap_or((file, "weight"));
    file.ends_with(".safetensors").then(|| (file.to_string(), name.to_string()))
}

/// Copies the tiny MPNet.
fn encoder(path: &Path) {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders/mpnet");
    std::fs::create_dir_all(path.join("1_Pooling")).unwrap();
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
    ] {
        std::fs::copy(testdata.join(file), path.join(file)).unwrap();
    }
}

/// Writes a Llama model of random weights as a Hugging Face folder.
fn dense_model(path: &Path, positions: usize) {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/llama");
    std::fs::create_dir_all(path).unwrap();
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    std::fs::write(path.join("chat_template.jinja"), template).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(testdata.join(file), path.join(file)).unwrap();
    }
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": CHANNELS, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": positions, "vocab_size": VOCABULARY, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "bos_token_id": 1, "eos_token_id": 2,
    });
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    let (queries, keys) = (HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM);
    let mut shapes = vec![
        ("model.embed_tokens".to_string(), vec![VOCABULARY, HIDDEN]),
        ("model.norm".to_string(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let linears = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![queries, HIDDEN]),
            ("self_attn.k_proj", vec![keys, HIDDEN]),
            ("self_attn.v_proj", vec![keys, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, queries]),
            ("mlp.gate_proj", vec![CHANNELS, HIDDEN]),
            ("mlp.up_proj", vec![CHANNELS, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, CHANNELS]),
        ];
        shapes.extend(linears.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    let names: Vec<String> = shapes.iter().map(|(name, _)| format!("{name}.weight")).collect();
    let tensors = shapes.iter().zip(&names).enumerate().map(|(seed, ((_, shape), name))| {
        let count = shape.iter().product();
        let values: Vec<f32> = match shape.len() {
            1 => vec![1.0; count],
            _ => noise(count, seed as u64).iter().map(|x| x * 0.2).collect(),
        };
        crate::common::bf16s(name, shape, &values)
    });
    let file = safetensors(&tensors.collect::<Vec<_>>(), &[("format", "pt")]);
    std::fs::write(path.join("model.safetensors"), file).unwrap();
}

/// A tiny model of the repository.
fn copy_model(name: &str, to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    std::fs::create_dir_all(to).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}
