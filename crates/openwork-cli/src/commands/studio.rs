//! `openwork studio`: patterns in the browser.

use crate::args::Global;
use crate::failure::Failure;
use crate::print;
use openwork_studio::{Access, Options, Studio as Server, Token, serve};
use serde_json::json;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Design, view and try patterns in the browser
///
/// Serves one page on 127.0.0.1. Write a spec and see it drawn, with its density, bits per
/// weight and kernel; compare it with others on a real layer; compute with layouts; follow
/// runs. The page loads nothing from the network and writes no files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  openwork studio --open
  openwork studio SmolLM2-135M --calib c4.jsonl --runs experiments
  openwork studio layer.safetensors --port 8080

Press Ctrl-C to stop the server. In a safetensors file, the tensor `hessian` or `inputs` (or
NAME.hessian, NAME.inputs) provides the input statistics of the matrices.")]
pub struct Studio {
    /// Models and safetensors files to try patterns on, in addition to the demo model
    #[arg(value_name = "MODEL|FILE")]
    sources: Vec<PathBuf>,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// Open the page in the browser
    #[arg(long)]
    open: bool,
    /// Calibration text for the inputs of the models
    #[arg(long, value_name = "TEXT", default_value = "demo")]
    calib: PathBuf,
    /// List the runs of `openwork prune` in and below this folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    runs: PathBuf,
    /// Listen on this address or host name, so that other machines can connect; the printed link contains a token
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
}

impl Studio {
    /// Opens the sources, then serves until it is interrupted.
    pub fn run(mut self, global: &Global) -> Result<(), Failure> {
        self.sources =
            self.sources.iter().map(|path| global.model(path)).collect::<Result<_, _>>()?;
        self.calib = global.text(&self.calib)?;
        if !self.runs.is_dir() {
            let why = format!("--runs {}: there is no such folder", self.runs.display());
            return Err(Failure::Input(why));
        }
        let name = self.host.as_deref().unwrap_or("127.0.0.1");
        let listener = listen(name, self.port)?;
        let bound = listener.local_addr().map_err(Failure::running)?;
        let access = match bound.ip().is_loopback() {
            true => Access::loopback(bound.port()),
            false => {
                let token = Token::random().map_err(Failure::running)?;
                global.note(&[format!(
                    "other machines can connect to {name}, over an unencrypted connection; whoever has the link can see these models and runs"
                )]);
                Access::public(name, bound.port(), token)
            }
        };
        let address = access.address(bound);
        let options = Options { sources: self.sources, calibration: self.calib, runs: self.runs };
        let studio = Server::new(&options, access).map_err(Failure::input)?;
        match global.json {
            true => print::line(json!({"address": address}))?,
            false => print::line(format!("Studio: {address}\nPress Ctrl-C to stop it"))?,
        }
        if self.open && !open(&address) {
            global.note(&["no browser could be started; open the address in one".to_string()]);
        }
        serve(studio, listener).map_err(Failure::running)
    }
}

fn listen(name: &str, port: u16) -> Result<TcpListener, Failure> {
    let asked = |why: &dyn std::fmt::Display| {
        Failure::Input(format!(
            "cannot listen on {name}, port {port}: {why}; give another --port or --host"
        ))
    };
    let ip: Option<IpAddr> = name.parse().ok();
    match ip {
        Some(ip) => TcpListener::bind((ip, port)).map_err(|error| asked(&error)),
        None => {
            let all: Vec<_> =
                (name, port).to_socket_addrs().map_err(|error| asked(&error))?.collect();
            TcpListener::bind(&all[..]).map_err(|error| asked(&error))
        }
    }
}

/// Starts the browser.
fn open(address: &str) -> bool {
    let program = match std::env::consts::OS {
        "macos" => "open",
        "windows" => "explorer",
        _ => "xdg-open",
    };
    let quiet =
        Command::new(program).arg(address).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    quiet.is_ok()
}
