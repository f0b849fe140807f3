#!/bin/sh
# Make ROOT/.venv from the hashed lock files. Called by ./dev when the lock file changed.
#
# uv does it in seconds where pip needs minutes; pip remains the way for machines on which uv
# does not run. Both install only what the hashes allow, from whatever index pip is told to use.
set -eu

root=$1
venv=$root/.venv
python=$venv/bin/python

say() { echo "dev: $*" >&2; }
fail() { say "$*" && exit 1; }

recent_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in "${LOCKKEEPER_PYTHON:-python3}" python3.13 python3.12 python3.11 python3.14; do
        recent_enough "$candidate" && echo "$candidate" && return
    done
    return 1
}

# What pip is configured to use, so that a company index or certificate needs no second setting.
honour_pip_settings() {
    pip_setting() { "$python" -m pip config get "$1" 2>/dev/null || true; }
    index=${PIP_INDEX_URL:-$(pip_setting global.index-url)}
    extra=${PIP_EXTRA_INDEX_URL:-$(pip_setting global.extra-index-url)}
    certificate=${PIP_CERT:-$(pip_setting global.cert)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$extra" ] || export UV_INDEX="${UV_INDEX:-$extra}"
    [ -z "$certificate" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificate}"
    export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}"
}

install_with_uv() {
    say "installing $(grep -c '==' "$root/requirements.lock") locked packages with uv"
    VIRTUAL_ENV=$venv "$1" pip install --require-hashes -r "$root/requirements.lock"
}

install_with_pip() {
    say "installing the locked packages with pip: this takes some minutes"
    "$python" -m pip install --progress-bar on --require-hashes -r "$root/requirements.lock"
}

if ! recent_enough "$python"; then
    if interpreter=$(find_python); then
        say "making .venv with $("$interpreter" --version) (first time only)"
        "$interpreter" -m venv --clear "$venv" ||
            fail "$interpreter cannot make a virtual environment (Debian: apt-get install python3-venv)"
    elif command -v uv >/dev/null 2>&1; then
        say "making .venv with uv (first time only)"
        uv venv --clear --python '>=3.11' "$venv"
    else
        fail "needs Python 3.11 or newer, or uv; found neither"
    fi
fi

if [ ! -x "$venv/bin/pip" ]; then
    command -v uv >/dev/null 2>&1 || fail ".venv has no pip and there is no uv; remove .venv and try again"
    install_with_uv uv || fail "the packages could not be installed"
else
    honour_pip_settings
    if "$python" -m pip install -q --disable-pip-version-check --require-hashes -r "$root/requirements-uv.lock" &&
        install_with_uv "$venv/bin/uv"; then
        :
    else
        say "uv could not do it"
        install_with_pip || fail "the packages could not be installed"
    fi
fi

# The project is used from the checkout; this is all that an editable install would add.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$root" >"$packages/lockkeeper-checkout.pth"
cat >"$venv/bin/lockkeeper" <<SCRIPT
#!/bin/sh
exec "$python" -m lockkeeper "\$@"
SCRIPT
chmod +x "$venv/bin/lockkeeper"
