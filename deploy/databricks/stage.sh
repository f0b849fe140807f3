#!/bin/sh
# Lay out build/app: what the platform starts as the app. Made anew each time.
set -eu
cd "$(dirname "$0")/../.."

rm -rf build/app
mkdir -p build/app
cp deploy/databricks/app/main.py deploy/databricks/app/app.yaml build/app/
cp requirements-services.lock build/app/requirements.txt
cp -R shared services lockkeeper build/app/
rm -rf build/app/services/document_agent build/app/shared/testing
find build/app -name __pycache__ -type d -prune -exec rm -rf {} +
