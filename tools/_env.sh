# Sourced by the scripts beside it: finds a Python and keeps virtual environments with the package
# installed in them up to date. Needs nothing but bash, coreutils, tar and a Python with venv.
# shellcheck shell=bash

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

# What an installation is made of. Also what decides whether it has to be made again.
PACKAGE_FILES=(pyproject.toml setup.py MANIFEST.in README.md LICENSE CHANGELOG.md shmpipe)

# pip must never wait for an answer, and children of the tests must not find the checkout's own
# shmpipe/ in front of the installed one (Python 3.10 does not know the second; -I covers it).
export PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONSAFEPATH=1

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$@"; exit 1; }

# Is "$1" a Python >= 3.10 (or exactly "$2") that can make environments? A shim that starts nothing is not.
usable() {
    "$1" -I -c '
import sys
wanted = tuple(map(int, sys.argv[1].split("."))) if sys.argv[1] else None
good = sys.version_info[:2] == wanted if wanted else sys.version_info >= (3, 10)
import venv, ensurepip
sys.exit(not good)' "${2-}" >/dev/null 2>&1
}

# Prints the Python to use: $PYTHON, else python3, else a versioned one.
find_python() {
    local candidate
    if [[ -n ${PYTHON-} ]]; then
        usable "$PYTHON" || die "PYTHON=$PYTHON is not a Python >= 3.10 with the venv module ($(describe "$PYTHON"))"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if usable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "found no Python >= 3.10 with the venv module; looked for:"
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        say "    $candidate: $(describe "$candidate")"
    done
    die "install one (on Debian: apt install python3 python3-venv), or name one: PYTHON=/path/to/python3 $0"
}

# Prints a Python of exactly version $1, or fails. Version managers keep theirs outside PATH.
find_exact_python() {
    local candidate
    for candidate in "python$1" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python3 \
        "${XDG_DATA_HOME:-$HOME/.local/share}"/uv/python/cpython-"$1".*/bin/python3; do
        if usable "$candidate" "$1"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

describe() {
    command -v "$1" >/dev/null 2>&1 || { printf 'not found'; return; }
    "$1" -I -c '
import sys
print("Python %d.%d.%d" % sys.version_info[:3], end="")
try:
    import venv, ensurepip
except ImportError:
    print(", without the venv module", end="")' 2>/dev/null || printf 'does not start'
}

# Prints a hash over every file that ends up in an installation, names and contents.
source_hash() {
    (
        cd -- "$ROOT"
        for path in "${PACKAGE_FILES[@]}"; do
            [[ ! -e $path ]] || find "$path" -type f ! -name '*.py[co]' ! -name '*.so' -print0
        done | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
    )
}

# ensure_env DIR PYTHON EXTRAS: an environment in DIR with the package and its EXTRAS ("" for none)
# installed from the present sources. Does nothing when that is already so.
ensure_env() {
    local dir=$1 python=$2 extras=$3 lock='' identity want
    if command -v flock >/dev/null; then # two scripts started at once must not both install
        exec {lock}>"$dir.lock"
        flock "$lock"
    fi
    identity=$("$python" -I -c 'import sys; print(sys.version.replace("\n", " "), sys.base_prefix)')
    if [[ $(cat "$dir/.made-by" 2>/dev/null) != "$identity" ]] || ! "$dir/bin/python" -I -c '' 2>/dev/null; then
        if [[ -e $dir && ! -e $dir/.made-by && -n $(ls -A -- "$dir") ]]; then
            die "${dir#"$ROOT"/} was not made here, and would be overwritten: move it away, or delete it"
        fi
        say "making ${dir#"$ROOT"/} with $(describe "$python")"
        rm -rf -- "$dir"
        mkdir -- "$dir"
        : >"$dir/.made-by" # also if this is not finished: then it is ours to make again
        "$python" -I -m venv "$dir" >&2 ||
            die "could not make ${dir#"$ROOT"/}; on Debian the module is in the package python3-venv"
        printf '%s\n' "$identity" >"$dir/.made-by"
    fi
    want=$(source_hash)
    if [[ $(cat "$dir/.installed-${extras:-plain}" 2>/dev/null) != "$want" ]]; then
        rm -f -- "$dir"/.installed-* # what is there is about to be replaced, or half replaced
        install_package "$dir" "$extras"
        printf '%s\n' "$want" >"$dir/.installed-${extras:-plain}"
        [[ -z $extras ]] || printf '%s\n' "$want" >"$dir/.installed-plain"
    fi
    [[ -z $lock ]] || exec {lock}>&-
}

# Copies what an installation is made of to directory $1. To build from a copy: setuptools leaves build/
# behind, and what a later build finds there (modules that were since removed) would be installed again.
copy_sources() {
    local path
    mkdir -p -- "$1"
    for path in "${PACKAGE_FILES[@]}"; do
        [[ ! -e $ROOT/$path ]] || tar -C "$ROOT" -cf - --exclude='__pycache__' --exclude='*.so' "$path" | tar -C "$1" -xf -
    done
}

install_package() (
    dir=$1 extras=$2
    stage=$(mktemp -d "${TMPDIR:-/tmp}/shmpipe-build.XXXXXX")
    trap 'rm -rf -- "$stage"' EXIT
    copy_sources "$stage/src"
    say "installing shmpipe${extras:+[$extras]} into ${dir#"$ROOT"/}"
    if ! "$dir/bin/python" -I -m pip install --quiet "$stage/src${extras:+[$extras]}" \
        </dev/null >"$stage/log" 2>&1; then
        cat -- "$stage/log" >&2
        if grep -qiE 'connection|resolution|timed out|could not fetch|no matching distribution' "$stage/log"; then
            die "pip found no package index that has what shmpipe needs (see above). Is there a network?" \
                "Otherwise point pip at an index (PIP_INDEX_URL, PIP_FIND_LINKS), and run this again"
        fi
        die "pip could not install shmpipe${extras:+[$extras]}; its output is above"
    fi
)

# Fails unless the Python of environment $1 imports the installed package, and not the checkout.
# What follows is put in front of it, as in check_installed ENV env NAME=VALUE.
check_installed() {
    "${@:2}" "$1/bin/python" -I -c '
import sys, shmpipe
where = getattr(shmpipe, "__file__", None) or "a directory without __init__.py"
if not where.startswith(sys.prefix):
    sys.exit(f"import shmpipe found {where}, not the package installed in {sys.prefix}")
' || die "the tests would not run against the installed package"
}

# Prints the engines to use in ENV: the one in SHMPIPE_ENGINE, else all that there are.
engines_in() {
    local found=${SHMPIPE_ENGINE-}
    if [[ -z $found ]]; then
        found=$("$1/bin/python" -I -c 'import shmpipe; print(shmpipe.engine)')
        [[ $found == pure ]] || found="native pure"
    fi
    printf '%s\n' "$found"
}

# make_importable ENV NAME...: these directories of the checkout can be imported by name in ENV. Only
# they: with the checkout itself on the path, its own shmpipe/ would come before the installed one.
make_importable() {
    local env=$1 site name
    shift
    site=$("$env/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p -- "$env/importable"
    for name in "$@"; do
        ln -sfn -- "$ROOT/$name" "$env/importable/$name"
    done
    printf '%s\n' "$env/importable" >"$site/shmpipe-checkout.pth"
}
