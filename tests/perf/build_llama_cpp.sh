#!/usr/bin/env bash
# Builds llama.cpp for this processor from the source of the llama-cpp-python package, for compare_engines.py.
# usage: tests/perf/build_llama_cpp.sh FOLDER      programs end up in FOLDER/build/bin; needs pip and cmake
set -euo pipefail
[[ $# == 1 ]] || { sed -n '3s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
pip download --no-deps --no-binary :all: -d package llama-cpp-python
mkdir -p source
tar -xzf package/llama_cpp_python-*.tar.gz -C source --strip-components=1
# gcc before 13 gets the configuration of AMX tiles wrong, which ends the programs by an illegal instruction.
flags=
version="$(c++ -dumpversion)"
if [[ "$(c++ -march=native -dM -E -x c++ - </dev/null)" == *__AMX_TILE__* && "${version%%.*}" -lt 13 ]]; then
  flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
fi
cmake -S source/vendor/llama.cpp -B build -G Ninja -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF
cmake --build build --target llama-bench llama-perplexity llama-completion
