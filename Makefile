# lasthop: `make demo` shows two virtual machines talking through it, `make test` runs every test.
# Both install what they need (Debian, as root) and build what they run.

CARGO ?= cargo

.PHONY: demo test quick bench bench-quick fuzz setup build programs check clean

## What it does, on the screen: two VMs, ping and TCP, then what the switch saw.
demo: setup build
	$(CARGO) run --release --quiet --package lasthop-tests-vm --bin demo

## Every test: style, walls, units, processes, instruction counts, virtual machines. Ends with a line "N passed, N failed".
test: setup programs check
	$(CARGO) xtask test

## What needs neither root nor virtual machines.
quick: check
	$(CARGO) xtask test --quick

## lasthop beside its peers; about 35 minutes on an idle machine, up to 70 where the CPUs are moved about.
bench: setup build
	target/release/lasthop-bench compare --out target/bench

## The same with one round of everything; about 7 minutes.
bench-quick: setup build
	target/release/lasthop-bench compare --quick --out target/bench

## Each fuzz target for a minute; needs the nightly toolchain and cargo-fuzz.
fuzz:
	fuzz/run

setup:
	scripts/setup

build:
	$(CARGO) build --release --bins

# What the tests run: no demo.
programs:
	$(CARGO) build --release --package lasthop --package lasthop-switch --package lasthop-control --package lasthop-uplink
	$(CARGO) build --release --package lasthop-bench --bins

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings
	$(CARGO) xtask walls

clean:
	$(CARGO) clean
