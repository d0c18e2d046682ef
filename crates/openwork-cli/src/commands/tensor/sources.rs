//! The tensors named on the command line: weights, Hessians and inputs.

use crate::args::Global;
use crate::failure::Failure;
use crate::files::{self, Dtype, Entry, Named, Place, Store};
use crate::progress::Progress;
use openwork::Spec;
use openwork::hessian::Hessian;
use openwork::prune::{Method, Monitor, Needs, PruneError};
use std::path::Path;

/// Parses a list of `[NAME=]FILE[:TENSOR]`.
pub fn named(texts: &[String]) -> Vec<Named> {
    texts.iter().map(|text| Named::parse(text)).collect()
}

/// The files named on the command line, each opened once.
pub struct Files {
    stores: Vec<Store>,
}

impl Files {
    /// Opens all files.
    pub fn open<'p>(places: impl Iterator<Item = &'p Named>) -> Result<Self, Failure> {
        let mut files = Self { stores: Vec::new() };
        for Named { place, .. } in places {
            if !files.stores.iter().any(|store| store.path() == place.path) {
                files.stores.push(Store::open(&place.path).map_err(Failure::input)?);
            }
        }
        Ok(files)
    }

    /// The index of the file at `path`, which must have been opened.
    fn index(&self, path: &Path) -> usize {
        let found = self.stores.iter().position(|store| store.path() == path);
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
        for Named { name, place } in places {
            let store = &files.stores[files.index(&place.path)];
            let tensor = store.choose(place).map_err(Failure::input)?;
            let entry = store.entry(&tensor, "weights", Dtype::ALL).map_err(Failure::input)?;
            let label = match name {
                Some(name) => name.clone(),
                None if places.len() == 1 => entry.name.to_string(),
                None => {
                    let shown = place.path.display();
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
enum Kind {
    Hessian,
    Inputs,
}

/// The statistics named on the command line.
pub struct Statistics {
    wanted: Vec<(Kind, Named)>,
}

impl Statistics {
    /// Parses `--hessian` and `--inputs`.
    pub fn parse(hessians: &[String], inputs: &[String]) -> Result<Self, Failure> {
        let hessians = named(hessians).into_iter().map(|named| (Kind::Hessian, named));
        let inputs = named(inputs).into_iter().map(|named| (Kind::Inputs, named));
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
    ) -> Result<Found<'f>, Failure> {
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
        let mut found = Found { sources: Vec::new(), source_of: Vec::new() };
        for w in weights {
            let own = self.wanted.iter().find(|(_, n)| n.name.as_deref() == Some(&w.label));
            let chosen = own.or_else(|| self.wanted.iter().find(|(_, n)| n.name.is_none()));
            let source = match chosen {
                Some((kind, named)) => Some(found.add(*kind, files, &named.place)?),
                None => None,
            };
            found.source_of.push(source);
        }
        Ok(found)
    }
}

/// Statistics found in files, not yet read; tensors may share them.
pub struct Found<'f> {
    sources: Vec<(Kind, &'f Store, String)>,
    /// For each tensor of the spec.
    source_of: Vec<Option<usize>>,
}

impl<'f> Found<'f> {
    fn add(&mut self, kind: Kind, files: &'f Files, place: &Place) -> Result<usize, Failure> {
        let store = &files.stores[files.index(&place.path)];
        let name = match kind {
            Kind::Hessian => files::choose_hessian(store, place),
            Kind::Inputs => store.choose(place),
        }
        .map_err(Failure::input)?;
        let same = |(k, s, n): &(Kind, &Store, String)| {
            *k == kind && std::ptr::eq(*s, store) && *n == name
        };
        if let Some(at) = self.sources.iter().position(same) {
            return Ok(at);
        }
        self.sources.push((kind, store, name));
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
        for (i, (kind, store, name)) in self.sources.iter().enumerate() {
            let user = self.source_of.iter().position(|of| *of == Some(i));
            let columns = user.map(|t| spec.tensors()[t].matrix().1);
            loaded.push(match kind {
                Kind::Hessian => files::load(store, name).map_err(Failure::input)?,
                Kind::Inputs => {
                    let progress = Progress::start(global, &format!("inputs {name}"));
                    let h = files::stream(store, name, columns, &|share| progress.progress(share));
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
