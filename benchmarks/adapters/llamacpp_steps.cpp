// Runs steps on llama.cpp's C interface, timed inside: reads "prefill N" and "decode B N" lines,
// answers seconds. peers.sh compiles it against libllama; adapters/llamacpp.py drives it.
//
// F32 weights and an F32 KV cache. Each sequence has a cache of its own (kv_unified = false). A
// decode context is filled once, by a prompt copied to all sequences; every step rewrites its end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llama.h"

static const int DECODE_STEPS = 5;

static double now_s() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static llama_context * make_context(llama_model * model, int threads, int sequences, int tokens) {
    llama_context_params params = llama_context_default_params();
    int padded = (tokens + 255) / 256 * 256;  // the cache is read in pieces of 256 tokens
    params.n_ctx = sequences * padded;
    params.n_batch = padded;
    params.n_seq_max = sequences;
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.kv_unified = false;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) std::exit(1);
    return context;
}

// One token or many for each of so many sequences, at this position; logits of the last of each.
static double run(llama_context * context, int vocab, int sequences, int tokens, int position) {
    llama_batch batch = llama_batch_init(sequences * tokens, 0, 1);
    for (int s = 0; s < sequences; ++s)
        for (int i = 0; i < tokens; ++i) {
            int row = batch.n_tokens++;
            batch.token[row] = std::rand() % vocab;
            batch.pos[row] = position + i;
            batch.n_seq_id[row] = 1;
            batch.seq_id[row][0] = s;
            batch.logits[row] = i == tokens - 1;
        }
    double started_s = now_s();
    if (llama_decode(context, batch)) std::exit(1);
    llama_synchronize(context);
    double time_s = now_s() - started_s;
    llama_batch_free(batch);
    return time_s;
}

static void forget(llama_context * context, int sequences, int position) {
    for (int s = 0; s < sequences; ++s)
        llama_memory_seq_rm(llama_get_memory(context), s, position, -1);
}

int main(int argc, char ** argv) {
    if (argc != 4) return 2;  // MODEL THREADS LONGEST
    int threads = std::atoi(argv[2]), longest = std::atoi(argv[3]);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context * prefills = make_context(model, threads, 1, longest);
    std::map<std::pair<int, int>, llama_context *> decodes;
    std::printf("ready\n");
    std::fflush(stdout);
    char kind[16];
    int count, cached;
    while (std::scanf("%15s %d %d", kind, &count, &cached) == 3) {
        double time_s;
        if (std::string(kind) == "prefill") {
            llama_memory_clear(llama_get_memory(prefills), false);
            time_s = run(prefills, vocab, 1, count, 0);
        } else {
            llama_context *& context = decodes[{count, cached}];
            if (!context) {
                context = make_context(model, threads, count, cached + 1);
                run(context, vocab, 1, cached, 0);
                for (int s = 1; s < count; ++s)
                    llama_memory_seq_cp(llama_get_memory(context), 0, s, -1, -1);
            }
            std::vector<double> times;
            for (int i = 0; i <= DECODE_STEPS; ++i) {
                double step_s = run(context, vocab, count, 1, cached);
                forget(context, count, cached);
                if (i > 0) times.push_back(step_s);  // the first finds the caches cold
            }
            std::sort(times.begin(), times.end());
            time_s = times[times.size() / 2];
        }
        std::printf("%.9f\n", time_s);
        std::fflush(stdout);
    }
}
