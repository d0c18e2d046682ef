#!/bin/bash
# Perplexity of models whose channels or heads were removed.
#   bench/structures.sh OPENWORK MODEL C4.jsonl WIKITEXT2.test OUT < bench/structures.txt
# A line of the list is name|spec|method. Results that are there are not made again.
set -u
openwork=$1 model=$2 calib=$3 text=$4 out=$5
mkdir -p "$out"
eval_of() { "$openwork" eval "$1" --text "$text" --max-tokens 16384 --seq-len 1024 --quiet --json; }
[ -e "$out/dense.eval.json" ] || eval_of "$model" > "$out/dense.eval.json"
while IFS='|' read -r name spec method; do
  [ -e "$out/$name.eval.json" ] && continue
  rm -rf "$out/$name"
  "$openwork" prune "$model" --spec "$spec" --method "$method" --remove --calib "$calib" \
    --samples 16 --seq-len 1024 --out "$out/$name" --quiet --json > "$out/$name.prune.json" || continue
  eval_of "$out/$name" > "$out/$name.eval.part" && mv "$out/$name.eval.part" "$out/$name.eval.json"
  rm -rf "$out/$name"
  echo "$name $(grep -o '"token_perplexity":[0-9.]*' "$out/$name.eval.json")"
done
