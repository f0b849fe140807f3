#!/bin/sh
# Write requirements-services.lock and requirements-agent.lock from the .in files here, with the
# versions of requirements.lock, so that an image never holds what the tests have not seen. Needs uv.
set -eu
cd "$(dirname "$0")/../.."

for target in services agent; do
    uv pip compile "deploy/docker/$target.in" --constraint requirements.lock --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet \
        --output-file "requirements-$target.lock"
done
