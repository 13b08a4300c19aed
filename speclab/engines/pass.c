/* One pass of a decoder over m new tokens, in C: all that a step of decoding computes. c_pass.py calls it, and parts.py
   says which model has which of the parts below.

   A pass looks up the tokens' embeddings and runs them through layers. In each layer a token's query is multiplied with
   the keys of all tokens that it may read, it takes a mean of their values, and a small network (the MLP) follows.
   Keys and values stay in pages of memory (the cache), so that the next pass reads them and computes none of them
   again. The last state of a token, times the output matrix, gives the logits of the token after it.

   Why five tokens cost little more than one: nearly all time goes into `multiply`. It reads a block of weights once
   and uses it for all tokens while it is in a register. Where reading is the limit, the other tokens are free.
   - A vector has L numbers, as many as a register of this processor. Rows of a matrix lie in blocks of L rows, column
     by column: one load gives a weight of L rows each, and no sum across a register is ever needed.
   - Weights are float32, bfloat16, or whole numbers of 8 or 4 bits with a scale. All sums are float32.
   - Threads share each step of a layer by its rows, and meet after it. Each output is one sum in one order, so that
     the result does not depend on the number of threads. */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
#endif

#if defined(__AVX512F__)
#define L 16 /* numbers in a register, of which there are 32, and 16 elsewhere */
#elif defined(__AVX2__)
#define L 8
#else
#define L 4
#endif
#define PAGE 64  /* tokens of one text in one page of the cache */
#define MOST (L == 16 ? 8 : 7) /* tokens whose sums are in registers at once */
#define CHUNK 16 /* blocks of a matrix that stay in the processor's cache while many tokens use them */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * L)));
typedef int32_t ivec __attribute__((vector_size(4 * L)));
typedef uint32_t uvec __attribute__((vector_size(4 * L)));

int lanes(void) { return L; }
int page_tokens(void) { return PAGE; }
INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE float total(vec v) { float sum = 0; for (int i = 0; i < L; i++) sum += v[i]; return sum; }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
INLINE long up_to(long n) { return (n + L - 1) / L * L; } /* whole registers for n numbers */

typedef struct { float *at; long stride; } Rows; /* of numbers, one for each token, in whole registers */
INLINE float *row(Rows x, long i) { return x.at + i * x.stride; }
INLINE Rows take(float **free, long n, long numbers) { /* n rows of the free memory, which then begins after them */
  Rows x = {*free, up_to(numbers)};
  *free += n * x.stride;
  return x;
}

/* e to the x: 2 to a whole number, times a polynomial of what is left (Cephes). NaN stays NaN, below -87 comes 0. */
INLINE vec exponential(vec x) {
  const vec low = (vec){0} - 87.3f, high = (vec){0} + 88.3f, half = (vec){0} + 0.5f;
  const vec clipped = choose(x < low, low, choose(x > high, high, x)), scaled = clipped * 1.44269504f;
  const ivec n = __builtin_convertvector(scaled + choose(scaled < 0, -half, half), ivec);
  const vec whole = __builtin_convertvector(n, vec), r = clipped - whole * 0.693359375f + whole * 2.12194440e-4f;
  const float parts[] = {1.98756915e-4f, 1.39819995e-3f, 8.33345190e-3f, 4.16657959e-2f, 1.66666654e-1f, 0.5f};
  vec y = {0};
  UNROLL for (int i = 0; i < 6; i++) y = y * r + parts[i];
  return choose(x < low, (vec){0}, (y * r * r + r + 1.0f) * (vec)((n + 127) << 23));
}
INLINE vec capped(vec x, float cap) { /* cap times the hyperbolic tangent of x / cap; 0: no cap */
  return cap > 0 ? cap - 2.0f * cap / (exponential(2.0f / cap * x) + 1.0f) : x;
}

/* ---- threads: OpenMP starts them, once for a whole pass; all meet after each step of it ---- */
typedef struct { atomic_int arrived, meeting; } Team;
/* Of so many things, those from FROM to TO - 1 are the part of thread `me` of n. */
#define FROM(things) ((long)(things) * me / n)
#define TO(things) ((long)(things) * (me + 1) / n)
/* A thread that waits long gives its core away: beside other work, the one that it waits for may need it. */
static void meet(Team *team, int n) {
  const int now = team->meeting;
  if (++team->arrived == n) {
    team->arrived = 0;
    team->meeting = now + 1;
  } else
    for (int looks = 0; team->meeting == now; looks++) {
#if defined(__x86_64__)
      __builtin_ia32_pause(); /* looking without a rest slows a thread that shares the core */
#endif
      if (looks > 500) sched_yield();
    }
}

/* ---- a product with a matrix ---- */
enum { FLOAT32, BFLOAT16, INT8, INT4 };
/* Words of 32 bits, L side by side, one for each row of a block: a word holds one, two, four or eight columns of its
   row, the first in its lowest bits. data: (blocks, columns / columns of a word, L). scale, low: (blocks, groups, L), a
   weight is number * scale + low, and only INT4 has low. group: columns that share them. bias: (rows) or NULL. */
typedef struct {
  int kind, columns, group;
  uint32_t *data;
  float *scale, *low, *bias;
} Matrix;

INLINE vec weights(const int kind, uvec words, const int k) { /* column k of each word */
  if (kind == FLOAT32) return (vec)words;
  if (kind == BFLOAT16) return (vec)(k ? words & 0xffff0000u : words << 16);
  if (kind == INT8) return __builtin_convertvector((ivec)(words << (24 - 8 * k)) >> 24, vec);
  return __builtin_convertvector((ivec)(words >> 4 * k & 15), vec);
}
/* out[i][block b] = rows of blocks b .. b + T - 1, times x[i], for M tokens. M, T and kind are known where this is
   compiled, so all sums are in registers. */
INLINE void tile(const int M, const int T, const int kind, const Matrix *w, Rows x, long b, Rows out) {
  const int N = 1 << kind; /* columns of a word */
  const long n = w->columns, group = kind >= INT8 ? w->group : n;
  const long block = n / N * L; /* words of a block */
  const uint32_t *word = w->data + b * block;
  vec sum[32] = {{0}};
  for (long j = 0, g = 0; j < n; g++) {
    vec part[32] = {{0}};
    float of_x[8] = {0};
    for (const long end = j + group; j < end; j += N, word += L) {
      uvec words[8];
      UNROLL for (int t = 0; t < T; t++) {
        memcpy(words + t, word + t * block, sizeof *words);
        __builtin_prefetch(word + t * block + 16 * L); /* while it computes, memory gets what comes next */
      }
      UNROLL for (int k = 0; k < N; k++) {
        vec of_block[8];
        UNROLL for (int t = 0; t < T; t++) of_block[t] = weights(kind, words[t], k);
        UNROLL for (int i = 0; i < M; i++) { /* the number of each token in turn, so that one register holds it */
          const float at = x.at[i * x.stride + j + k];
          if (kind == INT4) of_x[i] += at;
          UNROLL for (int t = 0; t < T; t++) part[t * M + i] += of_block[t] * at;
        }
      }
    }
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
      const long at = ((b + t) * (n / group) + g) * L;
      sum[t * M + i] += kind < INT8 ? part[t * M + i] : part[t * M + i] * load(w->scale + at);
      if (kind == INT4) sum[t * M + i] += load(w->low + at) * of_x[i];
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
    if (w->bias) sum[t * M + i] += load(w->bias + (b + t) * L);
    store(row(out, i) + t * L, sum[t * M + i]);
  }
}
/* As many blocks at once as there are registers for their sums, beside their weights and one number of a token: each
   sum waits for its own last addition alone, and reading is faster from several places at once. */
#define BLOCKS(M) (L == 16 ? (M <= 2 ? 8 : M <= 6 ? 4 : 2) : M == 1 ? 8 : M == 2 ? 4 : M == 3 ? 3 : M <= 6 ? 2 : 1)
#define TILES(M, T) \
  for (; b + T <= to; b += T, out.at += T * L) tile(M, T, kind, w, x, b, out);
#define TOKENS(M) \
  case M: \
    TILES(M, BLOCKS(M)) \
    if (BLOCKS(M) == 8) TILES(M, 4) \
    TILES(M, 1) \
    break;
INLINE void product(const int kind, const Matrix *w, Rows x, int m, long b, long to, Rows out) {
  switch (m) { TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4) TOKENS(5) TOKENS(6) TOKENS(7) TOKENS(8) }
}
/* To compile each kind takes a while: KINDS says which ones, bit by bit. */
#define OF(kind) \
  case kind: if (KINDS >> kind & 1) product(kind, w, of_x, m - i < MOST ? m - i : MOST, b, end, to_out); break;
/* out (m) = x (m) times the rows of blocks from .. to - 1. */
static void multiply(const Matrix *w, Rows x, int m, long from, long to, Rows out) {
  const long most = m <= MOST ? to - from : CHUNK;
  for (long b = from; b < to; b += most)
    for (int i = 0; i < m; i += MOST) {
      const long end = b + most < to ? b + most : to;
      const Rows of_x = {row(x, i), x.stride}, to_out = {row(out, i) + b * L, out.stride};
      switch (w->kind) { OF(FLOAT32) OF(BFLOAT16) OF(INT8) OF(INT4) }
    }
}

/* ---- what Python gives, and the cache ---- */
typedef struct { float *gain, *shift; } Norm; /* gain NULL: there is no such norm. shift NULL: nothing is added */
typedef struct {
  Norm before_attention, after_attention, before_mlp, after_mlp, queries, keys;
  Matrix qkv, out, gate, up, down; /* the MLP may have no gate */
  int rotary, window; /* its table of frequencies, from 1; the tokens that one reads at most. 0: none, all */
} Layer;
typedef struct {
  int layers, hidden, heads, kv_heads, head_size, mlp, ids, known, positions; /* known: ids with an embedding */
  int rotaries, turned;                /* tables of frequencies; numbers of a head that they turn */
  int centred, whole_norms;            /* norms take a mean off; those of queries and keys are over all heads at once */
  int activation, parallel;            /* of the MLP, which stands behind attention or parallel to it */
  int beside, start_normed;            /* a draft's head reads embeddings beside states; its stream may start normed */
  float epsilon, attention_scale, attention_cap, logit_cap, embedding_scale;
  const float *embeddings, *places;    /* (ids, hidden), (positions, hidden) or NULL */
  const float *frequencies, *factors;  /* (rotaries, turned / 2), (rotaries): of cosines and sines */
  Norm last, states;
  Matrix head;
  Layer *layer;
} Model;
/* Of a token: its text, its position, its row in the text's cache, and how many first rows it reads. */
typedef struct { int32_t text, position, row, whole; } Token;
/* mask: (m, masked), which of the rows after its first ones a token reads, or NULL. pages: of each text. outputs:
   (layers), where the states after a layer go, or NULL. logits: (n_logits) rows, of the tokens `wanted`. */
typedef struct {
  Model *model;
  int m, first, end, masked, n_logits; /* layers first .. end - 1 */
  const int64_t *ids;                  /* (m), NULL where states are given alone */
  const float *states;                 /* (m, hidden) or NULL */
  const Token *token;
  const uint8_t *mask;
  float ***pages, **outputs, *logits;
  const int32_t *wanted;
} Pass;

/* A page has a part for each head of keys: its keys (PAGE / L, head size, L), so that L keys meet a query at once, and
   its values (PAGE, head size). u: the number of a part, among those of all layers. r: a row of the text. */
static long part_floats(const Model *M) { return PAGE * (M->head_size + up_to(M->head_size)); }
long page_floats(const Model *M) { return M->layers * M->kv_heads * part_floats(M); }
static float *part_of(const Model *M, float **pages, int u, int r) { return pages[r / PAGE] + u * part_floats(M); }
static float *key_at(const Model *M, float **pages, int u, int r) {
  return part_of(M, pages, u, r) + (long)(r % PAGE / L) * M->head_size * L + r % L;
}
static float *value_at(const Model *M, float **pages, int u, int r) {
  return part_of(M, pages, u, r) + PAGE * M->head_size + r % PAGE * up_to(M->head_size);
}
/* Copy the keys and values of one row of a text over those of another one, in all layers. */
void move(const Model *M, float **pages, int from, int to) {
  for (int u = 0; u < M->layers * M->kv_heads; u++) {
    for (int d = 0; d < M->head_size; d++) key_at(M, pages, u, to)[d * L] = key_at(M, pages, u, from)[d * L];
    memcpy(value_at(M, pages, u, to), value_at(M, pages, u, from), M->head_size * sizeof(float));
  }
}

/* ---- the parts of a layer ---- */
static void normalise(const Model *M, Norm norm, const float *x, int n, float *out) {
  if (!norm.gain) { memmove(out, x, n * sizeof *x); return; }
  float mean = 0, square = 0;
  if (M->centred) for (int j = 0; j < n; j++) mean += x[j] / n;
#pragma omp simd reduction(+ : square) /* one sum in each lane of a register */
  for (int j = 0; j < n; j++) square += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / sqrtf(square / n + M->epsilon);
  for (int j = 0; j < n; j++) out[j] = (x[j] - mean) * scale * norm.gain[j] + (norm.shift ? norm.shift[j] : 0);
}
static vec activated(const Model *M, vec x) {
  enum { SILU, GELU, GELU_TANH };
  if (M->activation == SILU) return x / (1.0f + exponential(-x));
  if (M->activation == GELU_TANH) return x / (1.0f + exponential(-1.5957691216f * (x + 0.044715f * x * x * x)));
  for (int i = 0; i < L; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
  return x;
}
/* The first state of a token; and cosines and sines of its position, (rotaries, 2, turned / 2). */
static void embed(const Pass *P, long i, float *out, float *turns) {
  const Model *M = P->model;
  const int half = M->turned / 2, position = P->token[i].position;
  for (int j = 0; j < M->rotaries * half; j++) {
    const float angle = position * M->frequencies[j], factor = M->factors[j / half];
    float *to = turns + j / half * M->turned + j % half;
    to[0] = cosf(angle) * factor, to[half] = sinf(angle) * factor;
  }
  const float *place = M->places ? M->places + (long)position * M->hidden : NULL;
  if (P->states) normalise(M, M->start_normed ? M->states : (Norm){0}, P->states + i * M->hidden, M->hidden, out);
  else for (int j = 0; j < M->hidden; j++)
    out[j] = M->embeddings[P->ids[i] * M->hidden + j] * M->embedding_scale + (place ? place[j] : 0);
}
/* Head h of a token, queries first: it is normalised and turned to the token's position. A query is scaled; a key goes
   to the token's row in the cache, with its value. raw: all heads. */
static void spread(const Pass *P, int l, long i, int h, const float *raw, const float *turns, float *queries) {
  const Model *M = P->model;
  const Layer *layer = M->layer + l;
  const int D = M->head_size, half = M->turned / 2, g = h - M->heads, u = l * M->kv_heads + g;
  const int first = M->whole_norms ? (g < 0 ? 0 : M->heads) : h; /* of the heads that are normalised together */
  const int together = M->whole_norms ? (g < 0 ? M->heads : M->kv_heads) : 1;
  float normed[together * D], *head = normed + (h - first) * D;
  normalise(M, g < 0 ? layer->queries : layer->keys, raw + first * D, together * D, normed);
  const float *c = layer->rotary ? turns + (layer->rotary - 1) * M->turned : turns, *s = c + half;
  for (int d = 0; layer->rotary && d < half; d++) {
    const float a = head[d], b = head[d + half];
    head[d] = a * c[d] - b * s[d], head[d + half] = b * c[d] + a * s[d];
  }
  if (g < 0) {
    for (int d = 0; d < D; d++) queries[h * D + d] = head[d] * M->attention_scale;
    return;
  }
  float **pages = P->pages[P->token[i].text], *key = key_at(M, pages, u, P->token[i].row);
  for (int d = 0; d < D; d++) key[d * L] = head[d];
  memcpy(value_at(M, pages, u, P->token[i].row), raw + (h + M->kv_heads) * D, D * sizeof(float));
}
/* The mean of the values that a query, of head h of a token, reads, weighted by e to the product of query and key. */
static void attend(const Pass *P, int l, long i, int h, const float *query, float *scores, float *out) {
  const Model *M = P->model;
  const int D = M->head_size, u = l * M->kv_heads + h * M->kv_heads / M->heads, window = M->layer[l].window;
  const int whole = P->token[i].whole, end = whole + P->masked;
  const uint8_t *mask = P->mask + i * P->masked;
  float **pages = P->pages[P->token[i].text];
  const int first = window && whole > window ? (whole - window) / PAGE * PAGE : 0, n = end - first; /* rows it scores */
  for (int r = first; r < end; r += PAGE) {
    const float *keys = part_of(M, pages, u, r);
    vec s[PAGE / L] = {{0}};
    for (int d = 0; d < D; d++)
      UNROLL for (int b = 0; b < PAGE / L; b++) s[b] += load(keys + (b * D + d) * L) * query[d];
    UNROLL for (int b = 0; b < PAGE / L; b++) store(scores + r - first + b * L, capped(s[b], M->attention_cap));
  }
  for (int r = n; r < up_to(n); r++) scores[r] = -INFINITY;
  for (int r = end - 1, left = window ? window : end; r >= (window ? first : whole); r--) { /* the last rows count */
    const int reads = left && (r < whole || mask[r - whole]);
    left -= reads;
    if (!reads) scores[r - first] = -INFINITY;
  }
  vec highest = (vec){0} - INFINITY, sums = {0};
  for (int r = 0; r < n; r += L) { vec s = load(scores + r); highest = choose(s > highest, s, highest); }
  float top = -INFINITY;
  for (int j = 0; j < L; j++) top = highest[j] > top ? highest[j] : top;
  if (top == -INFINITY) top = 0; /* a token that reads nothing is padding: its output is 0; NaN stays NaN */
  for (int r = 0; r < n; r += L) {
    vec e = exponential(load(scores + r) - top);
    store(scores + r, e), sums += e;
  }
  const float sum = total(sums), scale = sum == 0 ? 0 : 1 / sum;
  vec mean[up_to(D) / L];
  memset(mean, 0, sizeof mean);
  for (int r = first; r < end; r++) {
    if (scores[r - first] == 0) continue; /* what it does not read may hold anything */
    const float *values = value_at(M, pages, u, r);
    for (int b = 0; b < up_to(D) / L; b++) mean[b] += load(values + b * L) * scores[r - first];
  }
  for (int d = 0; d < D; d++) out[d] = mean[d / L][d % L] * scale;
}

/* ---- a pass ---- */
/* What a product gives for each token, or its norm, is added to the token's state. y: all threads write there, each its
   own blocks. normed: of this thread. */
static void into_stream(const Model *M, const Matrix *w, Norm after, Rows x, int m, Rows y, Rows normed, Rows stream,
                        int me, int n, Team *team) {
  multiply(w, x, m, FROM(y.stride / L), TO(y.stride / L), y);
  meet(team, n);
  for (int i = 0; i < m; i++) {
    normalise(M, after, row(y, i), M->hidden, row(normed, i));
    for (int j = 0; j < M->hidden; j++) row(stream, i)[j] += row(normed, i)[j];
  }
}
/* shared: memory of all threads. own: of this thread, which has the states, norms and turns of all tokens for itself: to
   compute them takes less time than to meet. */
static void run_pass(const Pass *P, float *shared, float *own, int me, int n, Team *team) {
  const Model *M = P->model;
  const int m = P->m, D = M->head_size, H = M->hidden;
  const Rows queries = take(&shared, m, M->heads * D), attended = take(&shared, m, M->heads * D);
  const Rows raw = take(&shared, m, (M->heads + 2 * M->kv_heads) * D), y = take(&shared, m, H);
  const Rows inner = take(&shared, m, M->mlp), gates = take(&shared, m, M->mlp);
  const Rows stream = take(&own, m, H), x = take(&own, m, M->beside ? 2 * H : H), normed = take(&own, m, H);
  const Rows turns = take(&own, m, M->rotaries * M->turned);
  for (int i = 0; i < m; i++) embed(P, i, row(stream, i), row(turns, i));
  for (int l = P->first; l < P->end; l++) {
    const Layer *layer = M->layer + l;
    for (int i = 0; i < m; i++) {
      const float *before = M->beside ? M->embeddings + P->ids[i] * H : row(stream, i);
      normalise(M, layer->before_attention, before, H, row(x, i));
      if (M->beside) normalise(M, M->states, P->states + (long)i * H, H, row(x, i) + H);
      if (M->parallel) normalise(M, layer->before_mlp, row(stream, i), H, row(normed, i));
    }
    multiply(&layer->qkv, x, m, FROM(raw.stride / L), TO(raw.stride / L), raw);
    meet(team, n);
    const long heads = M->heads + M->kv_heads;
    for (long k = FROM(m * heads); k < TO(m * heads); k++)
      spread(P, l, k % m, k / m, row(raw, k % m), row(turns, k % m), row(queries, k % m));
    meet(team, n);
    for (long k = FROM(m * M->heads); k < TO(m * M->heads); k++) {
      const long at = k / m * D;
      attend(P, l, k % m, k / m, row(queries, k % m) + at, own, row(attended, k % m) + at);
    }
    meet(team, n);
    into_stream(M, &layer->out, layer->after_attention, attended, m, y, x, stream, me, n, team);
    if (!M->parallel)
      for (int i = 0; i < m; i++) normalise(M, layer->before_mlp, row(stream, i), H, row(normed, i));
    const int gated = layer->gate.data != NULL;
    const long from = FROM(inner.stride / L), to = TO(inner.stride / L);
    multiply(&layer->up, normed, m, from, to, inner);
    if (gated) multiply(&layer->gate, normed, m, from, to, gates);
    for (int i = 0; i < m; i++)
      for (long j = from * L; j < to * L; j += L) {
        const vec up = load(row(inner, i) + j);
        store(row(inner, i) + j, gated ? up * activated(M, load(row(gates, i) + j)) : activated(M, up));
      }
    meet(team, n);
    into_stream(M, &layer->down, layer->after_mlp, inner, m, y, x, stream, me, n, team);
    if (P->outputs[l])
      for (long i = FROM(m); i < TO(m); i++) memcpy(P->outputs[l] + i * H, row(stream, i), H * sizeof(float));
  }
  for (int i = 0; i < P->n_logits; i++) normalise(M, M->last, row(stream, P->wanted[i]), H, row(x, i));
  const Rows logits = {P->logits, up_to(M->ids)};
  const long blocks = P->n_logits ? logits.stride / L : 0;
  multiply(&M->head, x, P->n_logits, FROM(blocks), TO(blocks), logits);
  for (long b = FROM(blocks); M->logit_cap > 0 && b < TO(blocks); b++)
    for (int i = 0; i < P->n_logits; i++)
      store(row(logits, i) + b * L, capped(load(row(logits, i) + b * L), M->logit_cap));
}
/* k passes: a single one, or a chain over one text, each over the most probable one of the first n ids after the pass
   before: the first among equals, no number before all. tokens, highest: (k) these ids and their logits, or NULL.
   -> whether all ids and positions were known; -1: there is no memory */
int forward(Pass *P, int threads, int k, int n, int64_t *tokens, float *highest) {
  const Model *M = P->model;
  const long m = P->m, heads = (3 * M->heads + 2 * M->kv_heads) * M->head_size; /* of queries to values, and attended */
  const long shared = heads + M->hidden + 2 * M->mlp + 6 * L; /* of a token, in six rows */
  long own = 0; /* of each thread: scores of whole pages, and four rows of each token */
  for (int i = 0; i < m; i++) own = P->token[i].whole > own ? P->token[i].whole : own;
  own += k + P->masked + 2 * PAGE + m * (4 * M->hidden + M->rotaries * M->turned + 4 * L);
  float *memory = malloc(sizeof(float) * (m * shared + threads * own));
  if (!memory) return -1;
  int done = 0, known = 1;
  for (; done < k; done++) {
    for (int i = 0; i < P->m; i++) { /* each id and each position has an embedding */
      if (P->ids && (uint64_t)P->ids[i] >= (uint64_t)M->known) known = 0;
      if (M->places && P->token[i].position >= M->positions) known = 0;
    }
    if (!known) break;
    Team team = {0};
#pragma omp parallel num_threads(threads)
    run_pass(P, memory, memory + m * shared + omp_get_thread_num() * own, omp_get_thread_num(), omp_get_num_threads(),
             &team);
    if (!tokens) continue;
    int best = 0;
    for (int j = 1; j < n; j++) if (P->logits[j] > P->logits[best] || P->logits[j] != P->logits[j]) best = j;
    tokens[done] = best, highest[done] = P->logits[best];
    P->ids = tokens + done, P->token += P->m, P->wanted = &P->token->text, P->m = 1; /* of one text: 0 */
  }
  free(memory);
  return known;
}
