#!/bin/sh
# Write requirements-services.lock and requirements-agent.lock from pyproject.toml, with the versions of
# requirements.lock, so that an image never holds what the tests have not seen; and requirements-bill.lock, the tool
# that lists what an image holds and stays out of it. Needs uv.
set -eu
cd "$(dirname "$0")/../.."

lock() {
    name=$1
    shift
    uv pip compile "$@" --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
        --no-header --quiet --output-file "requirements-$name.lock"
}

lock services pyproject.toml --constraint requirements.lock
lock agent pyproject.toml --extra agent --constraint requirements.lock
echo cyclonedx-bom | lock bill -
