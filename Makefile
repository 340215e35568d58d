# The commands for development; each runs a script in scripts/.

.PHONY: help demo test test-all chaos model mutants fuzz lint advisories book bench image services services-stop
# Targets given together run one after another, each with its own exit code.
.NOTPARALLEL:

help:
	@echo 'make demo           watch records go from MongoDB to RabbitMQ (DEMO=forever: until Ctrl-C)'
	@echo 'make test           every guarantee, against real servers (KEEP_SERVICES=1: leave them running)'
	@echo 'make test-all       the same, and all tests that take long'
	@echo 'make chaos          processes through kills, cuts, rollbacks…: SEEDS (10) histories, those of a file, or SEED again'
	@echo 'make model          the protocols in every state, with larger bounds than in make test'
	@echo 'make mutants        changes of the protocol modules that the tests must notice: MODULES (all of them)'
	@echo 'make fuzz           random input to all parsers, for FUZZ_MINUTES (5)'
	@echo 'make lint           formatting, words, spelling, clippy, documentation, dependencies, scripts'
	@echo 'make advisories     known vulnerabilities of the dependencies; fails without the database'
	@echo 'make book           the documentation as a book, in target/book'
	@echo 'make bench          the benchmarks'
	@echo 'make image          the container image, built and proved without Docker; needs root'
	@echo 'make services       start the servers for tests; then: eval "$$(scripts/services.sh env)"'
	@echo 'make services-stop  stop them'

demo:
	@scripts/demo.sh

test:
	@scripts/test.sh

test-all:
	@scripts/test-all.sh

chaos:
	@scripts/chaos.sh

model:
	@scripts/model.sh

mutants:
	@scripts/mutants.sh

fuzz:
	@scripts/fuzz.sh

lint:
	@scripts/lint.sh

advisories:
	@scripts/advisories.sh

book:
	@scripts/book.sh

bench:
	@scripts/bench.sh

image:
	@scripts/image.sh

services:
	@scripts/services.sh start

services-stop:
	@scripts/services.sh stop
