# shellcheck shell=bash
# Shared by ci/quickstart and ci/test, which source it: what the machine needs, the harness, a ggml build.
#
# On Debian and Ubuntu, as root or with sudo that asks for no password, missing packages are installed. Elsewhere it
# is said what is missing and what is done without it. Nothing here resets what is cached: cargo's target folder, the
# cache of ggml builds and Mesa's shader cache (~/.cache/mesa_shader_cache) all shorten the next run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly DEFAULT_BUILD=npm-3.21.1
readonly BIN=target/release/ggml-parity

# ---- sections ------------------------------------------------------------------------------------------------------

SECTION=
SECTION_START=0
TIMES=()

# Ends the section before and begins another.
section() {
    end_section
    SECTION=$1
    SECTION_START=$SECONDS
    printf '\n==== %s\n' "$SECTION"
}

end_section() {
    if [[ -n $SECTION ]]; then
        TIMES+=("$(printf '%5d s  %s' $((SECONDS - SECTION_START)) "$SECTION")")
        printf -- '---- %s: %d s\n' "$SECTION" $((SECONDS - SECTION_START))
    fi
    SECTION=
}

# Says which section failed, and in any case how long each took.
finish() {
    local status=$?
    local failed=$SECTION
    end_section
    printf '\n==== times\n'
    if ((${#TIMES[@]})); then printf '%s\n' "${TIMES[@]}"; fi
    printf '%5d s  in all\n' "$SECONDS"
    if ((status != 0)); then
        printf '\nFAILED (exit %d)%s\n' "$status" "${failed:+ in: $failed}"
    fi
    exit "$status"
}
trap finish EXIT

notice() {
    printf '>> %s\n' "$*"
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# ---- system packages -----------------------------------------------------------------------------------------------

APT=()
if have apt-get; then
    if ((EUID == 0)); then
        APT=(env DEBIAN_FRONTEND=noninteractive apt-get)
    elif have sudo && sudo -n true 2>/dev/null; then
        APT=(sudo -n env DEBIAN_FRONTEND=noninteractive apt-get)
    fi
fi
APT_UPDATED=

# install WHY PACKAGE...: installs Debian packages where that is allowed, else says what is missing. Never fails:
# whoever needs the package looks again.
install() {
    local why=$1
    shift
    if ((${#APT[@]} == 0)); then
        notice "missing: $* ($why). Not installed from here: that takes Debian or Ubuntu, and root or sudo."
        return 0
    fi
    notice "installing $* ($why)"
    if [[ -z $APT_UPDATED ]]; then
        "${APT[@]}" update -qq || notice "apt-get update failed; going on with the lists there are"
        APT_UPDATED=yes
    fi
    "${APT[@]}" install -y -qq --no-install-recommends "$@" >/dev/null || notice "could not install $*"
}

have_vulkan() {
    local driver
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1' || return 1
    for driver in /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json; do
        if [[ -e $driver ]]; then return 0; fi
    done
    return 1
}

have_pip() {
    python3 -m pip --version >/dev/null 2>&1
}

need_rust() {
    if ! have cargo; then
        notice "Rust is missing: install it with rustup, or \`apt-get install cargo\` where that is $(rust_version) or newer."
        exit 4
    fi
    have cc || install "Rust links with it" gcc libc6-dev
}

rust_version() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

need_vulkan() {
    if [[ $(uname -s) != Linux ]]; then return 0; fi
    have_vulkan || install "Vulkan on the processor: a second backend without a GPU" mesa-vulkan-drivers libvulkan1
    have_vulkan || notice "no Vulkan driver: the gate covers the CPU flavours only"
}

need_cmake() {
    have cmake || install "builds ggml from source" cmake
    have ninja || install "builds ggml from source" ninja-build
    have c++ || install "builds ggml from source" g++ make
}

# ---- the harness and a ggml build ----------------------------------------------------------------------------------

build_harness() {
    cargo build --release --locked
}

# Puts a ggml build into the cache: the default one where this machine can have it, else one built from source.
get_ggml() {
    if [[ -n ${GGML_PARITY_GGML:-} ]]; then
        notice "GGML_PARITY_GGML is set: testing $GGML_PARITY_GGML"
        return 0
    fi
    if [[ $(uname -s)-$(uname -m) == Linux-x86_64 ]]; then
        have npm || install "fetches the default ggml build" npm
        # `devices` opens the build: an old system may lack the C library that it was linked with.
        if "$BIN" ggml fetch "$DEFAULT_BUILD" && "$BIN" devices --ggml "$DEFAULT_BUILD"; then
            return 0
        fi
        notice "no $DEFAULT_BUILD here; building ggml from source instead (about five minutes on two cores)"
    fi
    local backend=cpu-variants
    if [[ $(uname -s) == Darwin ]]; then backend=metal; fi
    need_cmake
    GGML_PARITY_GGML=$("$BIN" ggml build --backend "$backend")
    export GGML_PARITY_GGML
    notice "testing $GGML_PARITY_GGML"
    "$BIN" devices
}

# The folder that harness/src/builds/cache.rs finds.
cache_folder() {
    if [[ -n ${GGML_PARITY_CACHE:-} ]]; then
        printf '%s\n' "$GGML_PARITY_CACHE"
    elif [[ $(uname -s) == Darwin ]]; then
        printf '%s\n' "$HOME/Library/Caches/ggml-parity"
    else
        printf '%s\n' "${XDG_CACHE_HOME:-$HOME/.cache}/ggml-parity"
    fi
}
