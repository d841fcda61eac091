#!/usr/bin/env python3
"""Measures how many of a random sample of mutants the unit tests catch (docs/test.md, "Mutants").

    sample.py draw --seed N [--count N] [--of SET] [--area PATH]
                              prints a sample, and writes it to target/mutants; with --area only from files below PATH
    sample.py run [--of SET]  builds the unit tests once, with every mutant of the sample behind a switch, and runs for
                              each mutant the tests that reach it

Needs Python's tree_sitter and tree_sitter_rust.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import resource
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import rust  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "mutants"
TREE, SAMPLE, BUILT = WORK / "tree", WORK / "sample.json", WORK / "target"

# Sources that mutants are drawn from, and for each crate the crates whose unit tests run, the nearest first.
SETS = {
    # Memory checks, RTRS and RNBD servers, RoCE responder and connection manager, volumes, SMC-R engine.
    "protocols": (
        [
            "rdma/softverbs/src/memory", "rdma/softverbs/src/sges.rs", "rdma/rtrs/src/server",
            "appliance/storage/src/rnbd/server", "rdma/roce/src/responder", "rdma/cm/src",
            "appliance/storage/src/volume", "rdma/smcr/src/engine",
        ],
        {
            "rdma/softverbs": ["softverbs", "roce", "storage"],
            "rdma/rtrs": ["rtrs", "storage"],
            "rdma/roce": ["roce", "smcr", "storage"],
            "rdma/cm": ["cm", "roce", "storage"],
            "rdma/smcr": ["smcr"],
            "appliance/storage": ["storage"],
        },
    ),
    # Drivers of NVMe drives and of NICs, with the tests on device models.
    "drivers": (
        ["drivers/src/block/nvme", "drivers/src/ethernet/intel", "drivers/src/ethernet/vmxnet3", "drivers/src/ethernet/owners.rs"],
        {"drivers": ["drivers", "metal"]},
    ),
}
AREAS, CRATES = SETS["protocols"]
# Limits of a test run: CPU seconds beyond the time without a mutant, and bytes of memory.
PATIENCE, MEMORY = 30, 12 << 30


def files(within):
    for area in AREAS:
        path = ROOT / area
        assert path.exists(), area
        for file in [path] if path.is_file() else sorted(path.rglob("*.rs")):
            name = str(file.relative_to(ROOT))
            if "test" not in file.name and "/tests/" not in name and f"{name}/".startswith(within):
                yield name


def draw(seed, count, within):
    everything = []
    for name in files(within):
        everything += [dict(one, file=name) for one in rust.mutants((ROOT / name).read_bytes())]
    random.Random(seed).shuffle(everything)
    sample = everything[:count]
    for number, one in enumerate(sample, 1):
        one["id"] = number
        print(number, one["file"], one["line"], one["what"])
    print(f"{len(sample)} of {len(everything)} mutants, seed {seed}")
    WORK.mkdir(parents=True, exist_ok=True)
    SAMPLE.write_text(json.dumps(sample, indent=1))


def crates_for(one):
    return next(tests_of for crate, tests_of in CRATES.items() if one["file"].startswith(crate + "/"))


def make_tree(sample):
    """Makes a copy of the sources with the mutants of the sample. Unchanged files are not rewritten, so that cargo
    compiles only changed ones."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True)
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    sources = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    for name in {one["file"] for one in sample}:
        chosen = [one for one in sample if one["file"] == name]
        sources[name] = rust.switched(sources[name], chosen).encode()
    for crate in CRATES:
        sources[f"{crate}/src/lib.rs"] += rust.SWITCH.encode()
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in sources:
            path.unlink()
    for name, source in sources.items():
        path = TREE / name
        if not path.is_file() or path.read_bytes() != source:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source)


def build(sample):
    """Builds the unit tests, and returns the programs by crate. Removes mutants that do not compile from the sample."""
    while True:
        make_tree(sample)
        names = sorted({name for one in sample for name in crates_for(one)})
        command = ["cargo", "test", "--profile", "host", "--lib", "--tests", "--no-run", "--message-format", "json"]
        command += [argument for name in names for argument in ("-p", name)]
        environment = dict(os.environ, CARGO_TARGET_DIR=str(BUILT), RUSTFLAGS="--cap-lints allow")
        output = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE, text=True)
        messages = [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]
        if output.returncode == 0:
            programs = [m for m in messages if m.get("executable") and m["target"]["name"] in names]
            # Unit tests, or for a crate with only integration tests, those.
            programs.sort(key=lambda m: "test" in m["target"]["kind"])
            return {m["target"]["name"]: m["executable"] for m in programs}
        wrong = set()
        for message in messages:
            for span in message.get("message", {}).get("spans", []) if message["reason"] == "compiler-message" else []:
                lines = (TREE / span["file_name"]).read_text().splitlines()[span["line_start"] - 1:span["line_end"]]
                wrong |= {int(n) for n in re.findall(r"crate::mutant\((\d+)\)", "\n".join(lines))}
        if not wrong:
            sys.exit("the sources do not compile")
        print("do not compile:", *sorted(wrong))
        sample[:] = [one for one in sample if one["id"] not in wrong]


def tests(program, arguments, environment, seconds):
    """Runs tests. Returns whether they passed, and their output."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        # In the copy, because proptest stores failures beside the sources.
        child = subprocess.Popen([program, *arguments], cwd=TREE, env=dict(os.environ, **environment), preexec_fn=limit,
                                 stdout=output, stderr=subprocess.STDOUT)
        while True:
            try:
                child.wait(0.3)
                break
            except subprocess.TimeoutExpired:
                resident = pathlib.Path(f"/proc/{child.pid}/statm").read_text().split()[1:2]
                if resident and int(resident[0]) * 4096 > MEMORY:
                    child.kill()
        output.seek(0)
        return child.returncode == 0, output.read()


def reached(programs):
    """Finds which tests reach which mutant, and the time of each test."""
    hits, times = collections.defaultdict(set), {}
    for crate, program in programs.items():
        log = WORK / f"reached-{crate}"
        log.unlink(missing_ok=True)
        timed = ["--test-threads", "1", "-Zunstable-options", "--report-time"]
        good, output = tests(program, timed, {"MUTANT_LOG": str(log), "RUSTC_BOOTSTRAP": "1"}, 3600)
        if not good:
            sys.exit(f"{crate}: the tests fail without a mutant\n{output[-2000:]}")
        for test, seconds in re.findall(r"^test (\S+) \.\.\. ok <([\d.]+)s>", output, re.M):
            times[crate, test] = float(seconds)
        for line in log.read_text().splitlines() if log.exists() else []:
            number, test = line.split("\t")
            hits[int(number), crate].add(test)
    return hits, times


def verdict(one, programs, hits, times):
    result = "not reached"
    for crate in crates_for(one):
        names = hits.get((one["id"], crate), set())
        if any((crate, name) not in times for name in names):
            # A thread whose name is not a test's may belong to any test.
            names = {name for of, name in times if of == crate}
        result = "survived" if names else result
        # Quick tests first, in groups of increasing duration.
        group, longest = [], 0.1
        names = sorted(names, key=lambda name: times[crate, name])
        for at, name in enumerate(names):
            group.append(name)
            seconds = sum(times[crate, name] for name in group)
            if seconds < longest and at + 1 < len(names):
                continue
            enough = int(PATIENCE + 5 * seconds)
            good, output = tests(programs[crate], ["--exact", *group], {"MUTANT": str(one["id"])}, enough)
            if not good:
                failed = re.findall(r"^test (\S+) \.\.\. FAILED", output, re.M)
                return f"caught by {crate}::{failed[0]}" if failed else f"caught: the tests of {crate} crash or exceed a limit"
            group, longest = [], 4 * longest
    return result


def run():
    sample = json.loads(SAMPLE.read_text())
    drawn = len(sample)
    programs = build(sample)
    hits, times = reached(programs)
    caught = 0
    for one in sample:
        result = verdict(one, programs, hits, times)
        caught += result.startswith("caught")
        print(one["id"], one["file"], one["line"], one["what"], "=>", result, flush=True)
    print(f"{caught} of {len(sample)} caught ({100 * caught // max(len(sample), 1)} %), {drawn - len(sample)} do not compile")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=60)
    drawing.add_argument("--area", default="", metavar="PATH")
    running = commands.add_parser("run")
    for command in (drawing, running):
        command.add_argument("--of", choices=SETS, default="protocols")
    arguments = parser.parse_args()
    global AREAS, CRATES
    AREAS, CRATES = SETS[arguments.of]
    if arguments.command == "draw":
        draw(arguments.seed, arguments.count, arguments.area and arguments.area.rstrip("/") + "/")
    else:
        run()


if __name__ == "__main__":
    main()
