#!/bin/bash
# Prunes whole models and evaluates what came out, one line of a list after the other.
#   bench/models.sh OPENWORK MODELS C4.jsonl WIKITEXT2.test OUT < bench/whole_models.txt
# A line is name|model in MODELS|options of `openwork prune`. Results that are there are not made
# again. OUT/name.json holds the run's record, the perplexities and what time(1) saw; pruned folders
# are removed unless KEEP=1. TASKS is a list of task files that are evaluated as well, LIMIT documents
# of each.
set -u
openwork=$1 models=$2 calib=$3 text=$4 out=$5
mkdir -p "$out"
tasks=()
for task in ${TASKS:-}; do tasks+=(--task "$task"); done
[ -z "${LIMIT:-}" ] || tasks+=(--limit "$LIMIT")
evaluate() {
  "$openwork" eval "$1" --text "$text" --max-tokens 16384 --seq-len 1024 ${tasks[@]+"${tasks[@]}"} --quiet --json
}
while IFS='|' read -r name model options; do
  case $name in ''|'#'*) continue ;; esac
  [ -e "$out/$name.json" ] && continue
  if [ "$options" = dense ]; then
    evaluate "$models/$model" | python3 -c 'import json, sys
print(json.dumps({"eval": json.load(sys.stdin)}))' > "$out/$name.part" \
      && mv "$out/$name.part" "$out/$name.json"
    continue
  fi
  eval "/usr/bin/time -o '$out/$name.time' -f '%e %U %S %M' '$openwork' prune '$models/$model' $options \
    --calib '$calib' --out '$out/$name' --resume --json --quiet" > "$out/$name.prune" 2> "$out/$name.log" \
    || { echo "$name failed:"; cat "$out/$name.log"; continue; }
  evaluate "$out/$name" > "$out/$name.eval" || continue
  python3 - "$out/$name" <<'PY' > "$out/$name.part" && mv "$out/$name.part" "$out/$name.json"
import json, sys
path = sys.argv[1]
wall, user, system, kb = open(path + ".time").read().split()[-4:]
print(json.dumps({
    "prune": json.load(open(path + ".prune")), "eval": json.load(open(path + ".eval")),
    "wall": float(wall), "cpu": float(user) + float(system), "peak_bytes": int(kb) * 1024,
    "bytes": sum(__import__("os").path.getsize(f) for f in __import__("glob").glob(path + "/*.safetensors")),
}))
PY
  [ "${KEEP:-}" ] || rm -rf "$out/$name"
  rm -f "$out/$name".{time,prune,eval,log}
  echo "$name $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["eval"]["token_perplexity"])' "$out/$name.json")"
done
