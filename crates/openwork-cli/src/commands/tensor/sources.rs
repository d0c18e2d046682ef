//! The tensors named on the command line: weights, Hessians and inputs.

use crate::args::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::tensor_path::{Named, TensorPath};
use openwork::Spec;
use openwork::hessian::Hessian;
use openwork::prune::{Method, Monitor, Needs, PruneError};
use openwork_llm::tensors::{Entry, FLOATS, TensorFile, hessian};
use std::path::Path;

/// Parses a list of `[NAME=]FILE[:TENSOR]`.
pub fn named(texts: &[String]) -> Vec<Named> {
    texts.iter().map(|text| Named::parse(text)).collect()
}

/// The files named on the command line, each opened once.
pub struct Files {
    files: Vec<TensorFile>,
}

impl Files {
    /// Opens all files.
    pub fn open<'p>(places: impl Iterator<Item = &'p Named>) -> Result<Self, Failure> {
        let mut files = Self { files: Vec::new() };
        for Named { path, .. } in places {
            if !files.files.iter().any(|file| file.path() == path.file) {
                files.files.push(TensorFile::open(&path.file).map_err(Failure::input)?);
            }
        }
        Ok(files)
    }

    /// Their paths: the inputs of the command.
    pub fn paths(&self) -> Vec<&Path> {
        self.files.iter().map(TensorFile::path).collect()
    }

    /// The index of the file at `path`, which must have been opened.
    fn index(&self, path: &Path) -> usize {
        let found = self.files.iter().position(|file| file.path() == path);
        found.expect("every place's file was opened")
    }
}

/// Weights to prune, not yet read.
pub struct Weights<'f> {
    /// The name on the command line, or else in the file.
    pub label: String,
    /// Their entry in the file.
    pub entry: Entry<'f>,
}

impl<'f> Weights<'f> {
    /// Finds the tensors; if there are several, each needs a unique name.
    pub fn find(files: &'f Files, places: &'f [Named]) -> Result<Vec<Self>, Failure> {
        let mut found: Vec<Self> = Vec::new();
        for Named { name, path } in places {
            let file = &files.files[files.index(&path.file)];
            let tensor = file.choose(path.tensor.as_deref()).map_err(Failure::input)?;
            let entry = file.entry(&tensor, "weights", FLOATS).map_err(Failure::input)?;
            let label = match name {
                Some(name) => name.clone(),
                None if places.len() == 1 => entry.name.to_string(),
                None => {
                    let shown = path.file.display();
                    return Err(Failure::Input(format!(
                        "{shown}: several tensors need a name each; write NAME={shown}:TENSOR"
                    )));
                }
            };
            if found.iter().any(|known| known.label == label) {
                return Err(Failure::Input(format!("two tensors are called `{label}`")));
            }
            found.push(Self { label, entry });
        }
        Ok(found)
    }
}

/// The kind of statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatisticsKind {
    Hessian,
    Inputs,
}

/// The statistics named on the command line.
pub struct Statistics {
    wanted: Vec<(StatisticsKind, Named)>,
}

impl Statistics {
    /// Parses `--hessian` and `--inputs`.
    pub fn parse(hessians: &[String], inputs: &[String]) -> Result<Self, Failure> {
        let hessians = named(hessians).into_iter().map(|named| (StatisticsKind::Hessian, named));
        let inputs = named(inputs).into_iter().map(|named| (StatisticsKind::Inputs, named));
        let wanted: Vec<_> = hessians.chain(inputs).collect();
        for (i, (_, one)) in wanted.iter().enumerate() {
            if wanted[..i].iter().any(|(_, other)| other.name == one.name) {
                return Err(Failure::Input(match &one.name {
                    Some(name) => format!("`{name}` has more than one --hessian or --inputs; pass one"),
                    None => "more than one --hessian or --inputs without a name; write NAME=FILE:TENSOR, or pass one".to_string(),
                }));
            }
        }
        Ok(Self { wanted })
    }

    /// Their files and tensors.
    pub fn places(&self) -> impl Iterator<Item = &Named> {
        self.wanted.iter().map(|(_, named)| named)
    }

    /// Assigns statistics to each tensor: its own, or those without a name.
    pub fn resolve<'f>(
        &self,
        files: &'f Files,
        weights: &[&Weights<'f>],
    ) -> Result<FoundStatistics<'f>, Failure> {
        for (_, named) in &self.wanted {
            if let Some(name) = &named.name
                && !weights.iter().any(|w| w.label == *name)
            {
                let known: Vec<_> = weights.iter().map(|w| w.label.as_str()).collect();
                return Err(Failure::Input(format!(
                    "there is no tensor `{name}` for --hessian or --inputs; the tensors are {}",
                    known.join(", ")
                )));
            }
        }
        let mut found = FoundStatistics { sources: Vec::new(), source_of: Vec::new() };
        for w in weights {
            let own = self.wanted.iter().find(|(_, n)| n.name.as_deref() == Some(&w.label));
            let chosen = own.or_else(|| self.wanted.iter().find(|(_, n)| n.name.is_none()));
            let source = match chosen {
                Some((kind, named)) => Some(found.add(*kind, files, &named.path)?),
                None => None,
            };
            found.source_of.push(source);
        }
        Ok(found)
    }
}

/// Statistics found in files, not yet read; tensors may share them.
pub struct FoundStatistics<'f> {
    sources: Vec<(StatisticsKind, &'f TensorFile, String)>,
    /// For each tensor of the spec.
    source_of: Vec<Option<usize>>,
}

impl<'f> FoundStatistics<'f> {
    fn add(
        &mut self,
        kind: StatisticsKind,
        files: &'f Files,
        path: &TensorPath,
    ) -> Result<usize, Failure> {
        let file = &files.files[files.index(&path.file)];
        let name = match kind {
            StatisticsKind::Hessian => hessian::choose(file, path.tensor.as_deref()),
            StatisticsKind::Inputs => file.choose(path.tensor.as_deref()),
        }
        .map_err(Failure::input)?;
        let same = |(k, f, n): &(StatisticsKind, &TensorFile, String)| {
            *k == kind && std::ptr::eq(*f, file) && *n == name
        };
        if let Some(at) = self.sources.iter().position(same) {
            return Ok(at);
        }
        self.sources.push((kind, file, name));
        Ok(self.sources.len() - 1)
    }

    /// Checks that every method has the statistics it needs, before any runs.
    pub fn suffice(&self, methods: &[Method], spec: &Spec) -> Result<(), Failure> {
        let Some(t) = self.source_of.iter().position(Option::is_none) else { return Ok(()) };
        let tensor = spec.tensors()[t].name().to_string();
        match methods.iter().find(|method| method.needs() > Needs::Weights) {
            None if self.source_of.iter().all(Option::is_none) => Ok(()),
            None => Err(Failure::Input(format!(
                "`{tensor}` has no --hessian or --inputs, but another tensor has; pass them for all or none"
            ))),
            Some(method) => {
                let method = method.to_string();
                Err(Failure::input(PruneError::NoHessian { method, tensor }))
            }
        }
    }

    /// Reads or computes each Hessian once.
    pub fn load(self, spec: &Spec, global: &Global) -> Result<Hessians, Failure> {
        let mut loaded = Vec::new();
        for (i, (kind, file, name)) in self.sources.iter().enumerate() {
            let user = self.source_of.iter().position(|of| *of == Some(i));
            let columns = user.map(|t| spec.tensors()[t].matrix().1);
            loaded.push(match kind {
                StatisticsKind::Hessian => hessian::load(file, name).map_err(Failure::input)?,
                StatisticsKind::Inputs => {
                    let progress = Progress::start(global, &format!("inputs {name}"));
                    let h = hessian::sum_inputs(file, name, columns, &|share| {
                        progress.progress(share);
                    });
                    progress.end();
                    h.map_err(Failure::input)?
                }
            });
        }
        Ok(Hessians { loaded, source_of: self.source_of })
    }
}

/// The Hessians of a run.
pub struct Hessians {
    loaded: Vec<Hessian>,
    source_of: Vec<Option<usize>>,
}

impl Hessians {
    /// The Hessian of tensor `t` of the spec.
    pub fn get(&self, t: usize) -> Option<&Hessian> {
        self.source_of[t].map(|at| &self.loaded[at])
    }
}
