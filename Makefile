# lasthop: `make demo` shows two virtual machines talking through it, `make test` runs every test.
# Both install what they need (Debian, as root) and build what they run.

CARGO ?= cargo
# What two VMs on one switch need, and what everything needs.
FOUR = --package lasthop --package lasthop-switch --package lasthop-control --package lasthop-session
PROGRAMS = $(FOUR) --package lasthop-cable --package lasthop-flower --package lasthop-uplink --package lasthop-ovs --package lasthop-ovs-preload

.PHONY: demo demo-ovn test test-long quick bench bench-quick evidence fuzz setup setup-demo setup-ovn setup-bench setup-long build programs check clean

## What it does, on the screen: two VMs, ping and TCP, the switch killed under them, what it saw, and a Linux bridge beside.
demo: setup-demo
	$(CARGO) build --release $(FOUR)
	$(CARGO) run --release --quiet --package lasthop-tests-vm --bin demo

## OVN on two hosts, which are network namespaces: three VMs, a router, security groups, address translation, a load balancer, a move, deaths.
demo-ovn: setup-ovn
	$(CARGO) build --release $(PROGRAMS)
	$(CARGO) run --release --quiet --package lasthop-tests-vm --bin demo-ovn

## Every test: style, walls, units, processes, instruction counts, virtual machines. Ends with a line "N passed, N failed".
## All of it runs the programs of the build for tests, with their checks of arithmetic; the longer suite runs those that are shipped.
test: setup check
	@# Tests of virtual machines are built when they run, by themselves: with other features, and once.
	$(CARGO) build --workspace --exclude lasthop-tests-vm --all-targets
	CARGO="$(CARGO)" scripts/tested-programs
	LASTHOP_BIN_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/tested" $(CARGO) xtask test

## The same, and what takes long or rarely breaks, with the programs that are shipped: an hour and a quarter more.
test-long: setup-long programs check
	$(CARGO) xtask test --long

## What needs neither root nor virtual machines.
quick: check
	$(CARGO) xtask test --quick

## lasthop beside its peers; about an hour and a half on an idle machine, up to three times that where the CPUs are moved about.
bench: setup-bench build
	target/release/lasthop-bench compare --out target/bench

## The same with one round of everything; about 18 minutes.
bench-quick: setup-bench build
	target/release/lasthop-bench compare --quick --out target/bench

## The papers' tables and figures as far as they can be taken here (docs/evidence.md); about an hour and a half on an idle machine.
evidence: setup-bench build
	target/release/lasthop-sim paper --out target/evidence/simulation
	target/release/lasthop-bench compare --out target/evidence --scenario loop-64-split --scenario size-256-split --scenario size-512-split \
		--scenario size-1024-split --scenario acl-1 --scenario acl-971 --scenario driven-971 --scenario ports-pairs --scenario pairs \
		--scenario vifs --scenario vmdq --scenario vms --scenario uplink --scenario iommu --scenario grants --scenario snich --scenario card

## Each fuzz target for a minute; needs the nightly toolchain and cargo-fuzz.
fuzz:
	fuzz/run

# All that is needed here; or only what one of them needs.
setup:
	scripts/setup

setup-demo setup-ovn setup-bench setup-long:
	scripts/setup $(@:setup-%=%)

# What is built together has the features of all: the switch that is measured is not to have the device's engine in it.
build:
	$(CARGO) build --release --bins --workspace --exclude lasthop-device
	$(CARGO) build --release --package lasthop-device

# What the longer suite runs, and tests that are started by hand: no demo.
programs:
	$(CARGO) build --release $(PROGRAMS)
	$(CARGO) build --release --package lasthop-device
	$(CARGO) build --release --package lasthop-bench --package lasthop-loadgen --bins

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings
	@# What is built together has the features of all; these are built apart for a demo.
	$(CARGO) check --quiet $(FOUR)
	$(CARGO) xtask walls

clean:
	$(CARGO) clean
