//! The pattern studio: a page in the browser where patterns are written, seen, tried on real
//! weights and compared, and the local server behind it.
//!
//! Everything is computed by the functions that the command calls. [`Studio::answer`] is a
//! function from a request to a response, without sockets; [`serve`] connects it to a port.
//!
//! ```text
//! serve    connections, limits on size and time        guard    who may ask
//! page     the page's files, embedded                  api      one function per route
//! design   bound specs, tiles of cells, edits          trial    sources of weights, jobs
//! ```

mod api;
mod design;
mod guard;
mod page;
mod request;
mod runs;
mod serve;
mod trial;

pub use api::ROUTES;
pub use guard::{Access, Token};
pub use page::page_bytes;
pub use request::{Request, Response};
pub use serve::serve;
pub use trial::SourceError;

use design::Designs;
use runs::Runs;
use std::path::PathBuf;
use trial::{Jobs, Sources};

/// What a studio offers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Models, and safetensors files with weights. The demo's model is always there.
    pub sources: Vec<PathBuf>,
    /// The text that models are calibrated on.
    pub calibration: PathBuf,
    /// The folder below which runs are listed.
    pub runs: PathBuf,
}

/// Everything behind the page, shared by all requests.
#[derive(Debug)]
pub struct Studio {
    access: Access,
    designs: Designs,
    sources: Sources,
    jobs: Jobs,
    runs: Runs,
}

impl Studio {
    /// Opens the sources.
    pub fn new(options: &Options, access: Access) -> Result<Self, SourceError> {
        Ok(Self {
            access,
            designs: Designs::default(),
            sources: Sources::open(&options.sources, &options.calibration)?,
            jobs: Jobs::default(),
            runs: Runs::new(&options.runs),
        })
    }

    /// Answers a request: checks who asks, then serves a file of the page or computes.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let response = match self.access.check(request) {
            Ok(()) => api::route(self, request),
            Err(refusal) => refusal,
        };
        self.access.finish(request, response)
    }
}
