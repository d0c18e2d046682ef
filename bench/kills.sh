#!/bin/bash
# Kills a run 200 times (or $1) at random moments and resumes it each time: the bytes at the end must
# be those of an undisturbed run. The same test as in ./test, which kills 50 times.
set -eu
cd "$(dirname "$0")/.."
OPENWORK_KILLS=${1:-200} cargo test --release -p openwork-cli --test prune -- kill --nocapture
