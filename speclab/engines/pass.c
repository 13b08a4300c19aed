/* One pass of a decoder over m new tokens, in C: all that a step of decoding computes, in one file to read.

   A pass looks up the tokens' embeddings and runs them through layers. In each layer a token's query is held against
   the keys of all tokens that it may read, it takes a mean of their values, and a small network (the MLP) follows.
   Keys and values stay in pages of memory (the cache), so that the next pass reads them and computes none of them
   again. The last state of a token, times the output matrix, gives the logits of the token after it.

   Why five tokens cost little more than one: nearly all time goes into `multiply`. It reads a block of weights once
   and uses it for all tokens while it is in a register. Where reading is the limit, the other tokens are free.

   - A vector has L numbers, as many as a register of this processor. Rows of a matrix lie in blocks of L rows, column
     by column: one load gives a weight of L rows each, and no sum across a register is ever needed.
   - Weights are float32, bfloat16, or whole numbers of 8 or 4 bits with a scale (and a lowest value) for each group of
     columns. All sums are float32.
   - Threads share each step of a layer by its rows, and meet after it. Each output is one sum in one order, so that
     the result does not depend on the number of threads.

   It is called by c_pass.py; parts.py says which model has which of the parts below. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define L 16 /* numbers in a register, of which there are 32 */
#elif defined(__AVX2__)
#define L 8
#else
#define L 4
#endif
#define PAGE 64  /* tokens of one text in one page of the cache */
#define MOST 8   /* tokens whose sums are in registers at once */
#define CHUNK 16 /* blocks of a matrix that stay in the processor's cache while many tokens use them */
#define UNROLL _Pragma("GCC unroll 16")
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

/* e to the x: 2 to a whole number, times a polynomial of what is left (Cephes). NaN stays NaN, below -87 comes 0. */
INLINE vec exponential(vec x) {
  const vec low = (vec){0} - 87.3f, high = (vec){0} + 88.3f, half = (vec){0} + 0.5f;
  vec clipped = choose(x < low, low, choose(x > high, high, x)), scaled = clipped * 1.44269504f;
  ivec n = __builtin_convertvector(scaled + choose(scaled < 0, -half, half), ivec);
  vec r = clipped - __builtin_convertvector(n, vec) * 0.693359375f + __builtin_convertvector(n, vec) * 2.12194440e-4f;
  vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = (y * r * r + r + 1.0f) * (vec)((n + 127) << 23);
  return choose(x < low, (vec){0}, choose(x > high, (vec){0} + INFINITY, choose(x != x, x, y)));
}
INLINE vec hyperbolic_tangent(vec x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

/* ---- threads: the caller is number 0; the others wait for a job, and all meet after each step of it ---- */

typedef void (*work_of)(void *what, int me, int n); /* the part of thread `me` among n */
static struct {
  pthread_mutex_t calling, lock;
  pthread_cond_t bell;
  atomic_int job, at_work, arrived, meeting;
  int threads, n; /* that wait for jobs; that share the present one, the caller included */
  work_of work;
  void *what;
} team = {.calling = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .bell = PTHREAD_COND_INITIALIZER};

/* Looking again and again keeps a core busy, and where two threads share one, the other one slow: so a look rests. A
   thread that waits long gives its core away: beside other work, the one that it waits for may need it. */
static void rest(int looks) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (looks > 500) sched_yield();
}
static void meet(int n) {
  if (n == 1) return;
  int now = atomic_load_explicit(&team.meeting, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team.arrived, 1, memory_order_acq_rel) == n - 1) {
    atomic_store_explicit(&team.arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team.meeting, now + 1, memory_order_release);
  } else
    for (int looks = 0; atomic_load_explicit(&team.meeting, memory_order_acquire) == now; looks++) rest(looks);
}
static void *wait_for_jobs(void *number) {
  int me = (int)(intptr_t)number, seen = atomic_load(&team.job);
  for (atomic_fetch_sub(&team.at_work, 1);; atomic_fetch_sub(&team.at_work, 1)) { /* ready, or done */
    for (int looks = 0; looks < 5000 && atomic_load(&team.job) == seen; looks++) rest(looks); /* waking up is slow */
    pthread_mutex_lock(&team.lock);
    while (atomic_load(&team.job) == seen) pthread_cond_wait(&team.bell, &team.lock);
    pthread_mutex_unlock(&team.lock);
    seen++;
    if (me < team.n) team.work(team.what, me, team.n);
  }
  return NULL;
}
static void wait_for_all(void) {
  for (int looks = 0; atomic_load_explicit(&team.at_work, memory_order_acquire); looks++) rest(looks);
}
static void forget_threads(void) { /* a forked process has none of them */
  const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  team.threads = 0, team.calling = team.lock = fresh;
}
/* Run the work in n threads, and return when all are done. */
static void together(int n, work_of work, void *what) {
  pthread_mutex_lock(&team.calling);
  if (team.threads == 0 && n > 1) pthread_atfork(NULL, NULL, forget_threads);
  for (pthread_t thread; team.threads < n - 1; team.threads++) {
    atomic_store(&team.at_work, 1);
    if (pthread_create(&thread, NULL, wait_for_jobs, (void *)(intptr_t)(team.threads + 1))) break;
    wait_for_all();
  }
  if (n > team.threads + 1) n = team.threads + 1;
  if (n > 1) {
    pthread_mutex_lock(&team.lock);
    team.work = work, team.what = what, team.n = n;
    atomic_store(&team.at_work, team.threads);
    atomic_fetch_add(&team.job, 1);
    pthread_cond_broadcast(&team.bell);
    pthread_mutex_unlock(&team.lock);
  } else
    atomic_store(&team.at_work, 0);
  work(what, 0, n);
  wait_for_all();
  pthread_mutex_unlock(&team.calling);
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
INLINE uvec words_at(const Matrix *w, const int in_word, long block, long column) {
  uvec words;
  memcpy(&words, w->data + (block * w->columns + column) / in_word * L, sizeof words);
  return words;
}
/* out[i][block b] (+)= rows of blocks b .. b + T - 1, times x[i], for M tokens. U: sums of one output that run side by
   side, where there are few outputs: an addition takes longer than the time until the next one could begin. M, T, U and
   kind are known where this is compiled, so all sums are in registers. */
INLINE void tile(const int M, const int T, const int U, const int kind, const Matrix *w, const float *x, long x_stride,
                 long b, float *out, long stride, int add) {
  const int N = 1 << kind, step = U > N ? U : N; /* columns of a word, and of a turn of the loop */
  const long n = w->columns, group = kind >= INT8 ? w->group : n;
  vec sum[32];
  UNROLL for (int s = 0; s < T * M; s++) sum[s] = (vec){0};
  for (long j = 0, end = group, g = 0; j < n; end += group, g++) {
    vec part[32];
    float of_x[MOST];
    UNROLL for (int s = 0; s < U * T * M; s++) part[s] = (vec){0};
    UNROLL for (int i = 0; i < M; i++) of_x[i] = 0;
    for (; j + step <= end; j += step)
      UNROLL for (int c = 0; c < step; c += N) {
        uvec words[8];
        UNROLL for (int t = 0; t < T; t++) words[t] = words_at(w, N, b + t, j + c);
        UNROLL for (int k = 0; k < N; k++) {
          const float *at = x + j + c + k;
          if (kind == INT4) UNROLL for (int i = 0; i < M; i++) of_x[i] += at[i * x_stride];
          UNROLL for (int t = 0; t < T; t++) {
            const vec v = weights(kind, words[t], k);
            UNROLL for (int i = 0; i < M; i++) part[((c + k) % U * T + t) * M + i] += v * at[i * x_stride];
          }
        }
      }
    for (; j < end; j += N) /* columns that are left over */
      UNROLL for (int k = 0; k < N; k++) UNROLL for (int t = 0; t < T; t++) {
        const vec v = weights(kind, words_at(w, N, b + t, j), k);
        UNROLL for (int i = 0; i < M; i++) part[t * M + i] += v * x[i * x_stride + j + k];
      }
    UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
      const long at = ((b + t) * (n / group) + g) * L;
      UNROLL for (int u = 1; u < U; u++) part[t * M + i] += part[(u * T + t) * M + i];
      sum[t * M + i] += kind < INT8 ? part[t * M + i] : part[t * M + i] * load(w->scale + at);
      if (kind == INT4) sum[t * M + i] += load(w->low + at) * of_x[i];
    }
  }
  UNROLL for (int t = 0; t < T; t++) UNROLL for (int i = 0; i < M; i++) {
    float *o = out + i * stride + t * L;
    if (w->bias) sum[t * M + i] += load(w->bias + (b + t) * L);
    store(o, add ? load(o) + sum[t * M + i] : sum[t * M + i]);
  }
}
/* As many blocks at once as there are registers for their sums: reading is faster from several places at once. */
#if L == 16
#define BLOCKS(M) (M <= 2 ? 8 : M <= 6 ? 4 : 2)
#else
#define BLOCKS(M) (M == 1 ? 8 : M <= 3 ? 4 : M <= 6 ? 2 : 1)
#endif
#define TILES(M, T, U, kind) \
  for (; b + T <= to; b += T) tile(M, T, U, kind, w, x, x_stride, b, out + (b - from) * L, stride, add);
#define RUN(M, kind) \
  case M: \
    TILES(M, BLOCKS(M), 1, kind) \
    if (M == 1) TILES(1, 4, 1, kind) \
    TILES(M, 1, (M == 1 ? 8 : 1), kind) \
    break;
typedef void product_of(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out,
                        long stride, int add);
/* To compile each kind takes a while: KINDS says which ones, bit by bit. */
#define PRODUCT(name, kind) \
  static void name(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out, long stride, \
                   int add) { \
    long b = from; \
    if (KINDS >> kind & 1) switch (m) { \
        RUN(1, kind) RUN(2, kind) RUN(3, kind) RUN(4, kind) RUN(5, kind) RUN(6, kind) RUN(7, kind) RUN(8, kind) \
      } \
  }
PRODUCT(of_float32, FLOAT32)
PRODUCT(of_bfloat16, BFLOAT16)
PRODUCT(of_int8, INT8)
PRODUCT(of_int4, INT4)
/* out (m, stride) (+)= x (m, x_stride) times the rows of blocks from .. to - 1, the first of which goes to out[0]. */
static void multiply(const Matrix *w, const float *x, long x_stride, int m, long from, long to, float *out, long stride,
                     int add) {
  product_of *const product = ((product_of *[]){of_float32, of_bfloat16, of_int8, of_int4})[w->kind];
  const long most = m <= MOST ? to - from : CHUNK;
  for (long b = from; b < to; b += most)
    for (int i = 0; i < m; i += MOST)
      product(w, x + i * x_stride, x_stride, m - i < MOST ? m - i : MOST, b, b + most < to ? b + most : to,
              out + i * stride + (b - from) * L, stride, add);
}

/* ---- the parts of a layer ---- */

typedef struct { float *gain, *shift; } Norm; /* gain NULL: there is no such norm. shift NULL: nothing is added */
typedef struct {
  Norm before_attention, after_attention, before_mlp, after_mlp, queries, keys;
  Matrix qkv, out, up, down;     /* up: blocks of the gate and of the other factor in turns, where there is a gate */
  const float *cosines, *sines; /* (positions, turned / 2), NULL: no rotary positions */
  int window;                   /* tokens that one reads at most, itself included; 0: all */
} Layer;
typedef struct {
  int layers, hidden, heads, kv_heads, head_size, mlp, turned, ids; /* turned: numbers of a head that are rotated */
  int centred, whole_norms, gated, activation, parallel; /* norms of layers, of all queries; attention beside the MLP */
  int beside, start_normed; /* a draft's head reads embeddings beside states, and may begin with a norm of these */
  float epsilon, attention_scale, attention_cap, logit_cap, embedding_scale;
  const float *embeddings, *places; /* (ids, hidden), (positions, hidden) or NULL */
  Norm last, states;
  Matrix head;
  Layer *layer;
} Model;
/* ids or states may be NULL. text, position, row, whole: (m) of each token its text, its position, its row in the
   text's cache, and how many first rows it reads. mask: (m, masked), which of the rows after these it reads, or NULL.
   pages: of each text. outputs: (layers), where the states after a layer go, or NULL. wanted: (n_logits) the tokens
   whose logits are wanted. scratch: floats_needed() numbers. */
typedef struct {
  Model *model;
  int m, first, end; /* layers first .. end - 1 */
  const int64_t *ids;
  const float *states;
  const int32_t *text, *position, *row, *whole;
  const uint8_t *mask;
  int masked;
  float ***pages, **outputs;
  int n_logits;
  const int32_t *wanted;
  float *logits, *scratch;
} Pass;

/* Keys of a page: (PAGE / L, head size, L), so that L keys meet a query at once; values: (PAGE, head size). */
static long page_part(const Model *M) { return PAGE * (M->head_size + up_to(M->head_size)); }
long page_floats(const Model *M) { return M->layers * M->kv_heads * page_part(M); }
static float *page_of(const Model *M, float *page, int l, int g) { return page + (l * M->kv_heads + g) * page_part(M); }
static float *key_at(const Model *M, float *part, int r) {
  return part + (long)(r % PAGE / L) * M->head_size * L + r % L;
}
static float *value_at(const Model *M, float *part, int r) {
  return part + PAGE * M->head_size + r % PAGE * up_to(M->head_size);
}
typedef struct { long hidden, qkv, queries, mlp; } Widths; /* of rows, in whole registers */
static Widths widths_of(const Model *M) {
  const long D = M->head_size;
  return (Widths){up_to(M->hidden), up_to((M->heads + 2 * M->kv_heads) * D), up_to(M->heads * D), up_to(M->mlp)};
}
long floats_needed(const Model *M, int m) {
  const Widths W = widths_of(M);
  return m * (2 * W.hidden + W.qkv + 2 * W.queries + W.mlp);
}
static void normalise(const Model *M, Norm norm, const float *x, int n, float *out) {
  if (!norm.gain) { memmove(out, x, n * sizeof *x); return; }
  float mean = 0;
  if (M->centred) for (int j = 0; j < n; j++) mean += x[j] / n;
  vec squares = {0};
  int j = 0;
  for (; j + L <= n; j += L) { vec v = load(x + j) - mean; squares += v * v; }
  float square = total(squares);
  for (; j < n; j++) square += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / sqrtf(square / n + M->epsilon);
  for (j = 0; j < n; j++) out[j] = (x[j] - mean) * scale * norm.gain[j] + (norm.shift ? norm.shift[j] : 0);
}
static vec activated(const Model *M, vec x) {
  enum { SILU, GELU, GELU_TANH, RELU };
  if (M->activation == SILU) return x / (1.0f + exponential(-x));
  if (M->activation == RELU) return choose(x < 0, (vec){0}, x);
  if (M->activation == GELU_TANH)
    return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
  for (int i = 0; i < L; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
  return x;
}
/* Head h of a token, of n heads in `raw`: normalised, and turned to its position. */
static void turn(const Model *M, const Layer *layer, Norm norm, const float *raw, int h, int n, int position,
                 float *out) {
  const int D = M->head_size, half = M->turned / 2;
  float all[norm.gain && M->whole_norms ? n * D : 1]; /* where one mean is over all heads */
  if (norm.gain && M->whole_norms) {
    normalise(M, norm, raw, n * D, all);
    memcpy(out, all + h * D, D * sizeof *out);
  } else
    normalise(M, norm, raw + h * D, D, out);
  if (!layer->cosines) return;
  const float *c = layer->cosines + (long)position * half, *s = layer->sines + (long)position * half;
  for (int d = 0; d < half; d++) {
    const float a = out[d], b = out[d + half];
    out[d] = a * c[d] - b * s[d], out[d + half] = b * c[d] + a * s[d];
  }
}
/* The mean of the values that a query reads, weighted by e to the product of query and key. pages: of the text. The
   first `whole` rows are read, and of the n_more rows after them those that the mask names. */
static void attend(const Model *M, int l, int g, float **pages, const float *query, int whole, const uint8_t *mask,
                   int n_more, float *scores, float *out) {
  const int D = M->head_size, end = whole + n_more;
  int begin = 0;
  if (M->layer[l].window) { /* it reads the last ones of its rows, so many */
    int left = M->layer[l].window;
    for (begin = end; begin > whole && left; begin--) left -= mask[begin - 1 - whole];
    if (begin == whole) begin = whole > left ? whole - left : 0;
  }
  const int first = begin / PAGE * PAGE, n = end - first; /* scores are of the rows from `first` on */
  for (int r = first; r < end; r += PAGE) {
    const float *keys = page_of(M, pages[r / PAGE], l, g);
    vec s[PAGE / L];
    UNROLL for (int b = 0; b < PAGE / L; b++) s[b] = (vec){0};
    for (int d = 0; d < D; d++)
      UNROLL for (int b = 0; b < PAGE / L; b++) s[b] += load(keys + (b * D + d) * L) * query[d];
    UNROLL for (int b = 0; b < PAGE / L; b++) {
      if (M->attention_cap > 0) s[b] = M->attention_cap * hyperbolic_tangent(s[b] / M->attention_cap);
      store(scores + r - first + b * L, s[b]);
    }
  }
  for (int r = first; r < first + up_to(n); r++)
    if (r < begin || r >= end || (r >= whole && !mask[r - whole])) scores[r - first] = -INFINITY;
  vec highest = (vec){0} - INFINITY, sums = {0};
  for (int r = 0; r < n; r += L) { vec s = load(scores + r); highest = choose(s > highest, s, highest); }
  float top = -INFINITY;
  for (int i = 0; i < L; i++) top = highest[i] > top ? highest[i] : top;
  if (top == -INFINITY) top = 0; /* a token that reads nothing is padding: its output is 0; NaN stays NaN */
  for (int r = 0; r < n; r += L) {
    vec e = exponential(load(scores + r) - top);
    store(scores + r, e), sums += e;
  }
  const float sum = total(sums), scale = sum == 0 ? 0 : 1 / sum;
  for (int from = 0; from < D; from += 4 * L) {
    const int parts = up_to(D - from) / L < 4 ? up_to(D - from) / L : 4;
    vec mean[4] = {{0}};
    for (int r = begin; r < end; r++) {
      if (scores[r - first] == 0) continue; /* what it does not read may hold anything */
      const float *values = value_at(M, page_of(M, pages[r / PAGE], l, g), r) + from;
      for (int b = 0; b < parts; b++) mean[b] += load(values + b * L) * scores[r - first];
    }
    for (int d = 0; d < D - from && d < 4 * L; d++) out[from + d] = mean[d / L][d % L] * scale;
  }
}

/* ---- a pass ---- */

#define PART(total, from, to) const long from = (total) * me / n, to = (total) * (me + 1) / n
/* Blocks of a matrix are shared in fours, so that any number of threads runs the same ones beside each other. */
#define BLOCKS_OF(total, from, to) \
  const long from = (up_to(total) / L + 3) / 4 * me / n * 4; \
  const long to = me == n - 1 ? up_to(total) / L : (up_to(total) / L + 3) / 4 * (me + 1) / n * 4
/* A product's rows go into the residual stream: at once, or after a norm. y: where they are until then. */
static void into_stream(const Model *M, const Matrix *w, Norm after, const float *x, long x_stride, int m,
                        float *stream, float *y, long hidden, int me, int n) {
  BLOCKS_OF(hidden, from, to);
  multiply(w, x, x_stride, m, from, to, (after.gain ? y : stream) + from * L, hidden, !after.gain);
  meet(n);
  if (!after.gain) return;
  PART((long)m, a, b);
  for (long i = a; i < b; i++) {
    normalise(M, after, y + i * hidden, M->hidden, y + i * hidden);
    for (int j = 0; j < M->hidden; j++) stream[i * hidden + j] += y[i * hidden + j];
  }
  meet(n);
}
static void embed(const Pass *P, const Model *M, long i, float *out) {
  const float *row = P->ids ? M->embeddings + P->ids[i] * M->hidden : NULL;
  const float *place = M->places ? M->places + (long)P->position[i] * M->hidden : NULL;
  if (P->states) normalise(M, M->start_normed ? M->states : (Norm){0}, P->states + i * M->hidden, M->hidden, out);
  else for (int j = 0; j < M->hidden; j++) out[j] = row[j] * M->embedding_scale + (place ? place[j] : 0);
}
/* Queries are turned and scaled, keys are turned, and keys and values go to the token's row. */
static void spread(const Pass *P, const Model *M, int l, long i, int h, const float *raw, float *queries) {
  const Layer *layer = M->layer + l;
  const int D = M->head_size, g = h - M->heads, kv = M->kv_heads;
  if (h < M->heads) {
    turn(M, layer, layer->queries, raw, h, M->heads, P->position[i], queries + h * D);
    for (int d = 0; d < D; d++) queries[h * D + d] *= M->attention_scale;
    return;
  }
  float key[D], *part = page_of(M, P->pages[P->text[i]][P->row[i] / PAGE], l, g), *at = key_at(M, part, P->row[i]);
  turn(M, layer, layer->keys, raw + M->heads * D, g, kv, P->position[i], key);
  for (int d = 0; d < D; d++) at[d * L] = key[d];
  memcpy(value_at(M, part, P->row[i]), raw + (M->heads + kv + g) * D, D * sizeof(float));
}
static void run_pass(void *job, int me, int n) {
  const Pass *P = job;
  const Model *M = P->model;
  const int m = P->m, D = M->head_size, H = M->hidden;
  const Widths W = widths_of(M);
  float *stream = P->scratch, *y = stream + m * W.hidden, *raw = y + m * W.hidden; /* of all threads */
  float *queries = raw + m * W.qkv, *attended = queries + m * W.queries, *inner = attended + m * W.queries;
  long rows = 0;
  for (int i = 0; i < m; i++) rows = P->whole[i] > rows ? P->whole[i] : rows;
  rows += P->masked + 2 * PAGE; /* scores of whole pages */
  const long input = M->beside ? 2 * W.hidden : W.hidden, most = m > P->n_logits ? m : P->n_logits;
  float *x = malloc(sizeof(float) * ((input + W.hidden + CHUNK * L) * most + rows)); /* of this thread alone */
  float *normed = x + most * input, *factors = normed + most * W.hidden, *scores = factors + most * CHUNK * L;
  PART((long)m, mine, not_mine);
  for (long i = mine; i < not_mine; i++) embed(P, M, i, stream + i * W.hidden);
  meet(n);
  for (int l = P->first; l < P->end; l++) {
    const Layer *layer = M->layer + l;
    for (int i = 0; i < m; i++) { /* each thread makes all norms for itself: to meet takes longer */
      const float *before = M->beside ? M->embeddings + P->ids[i] * H : stream + i * W.hidden;
      normalise(M, layer->before_attention, before, H, x + i * input);
      if (M->beside) normalise(M, M->states, P->states + (long)i * H, H, x + i * input + H);
      if (M->parallel) normalise(M, layer->before_mlp, stream + i * W.hidden, H, normed + i * W.hidden);
    }
    BLOCKS_OF(W.qkv, q0, q1);
    multiply(&layer->qkv, x, input, m, q0, q1, raw + q0 * L, W.qkv, 0);
    meet(n);
    PART((long)m * (M->heads + M->kv_heads), s0, s1);
    for (long u = s0; u < s1; u++) spread(P, M, l, u % m, u / m, raw + u % m * W.qkv, queries + u % m * W.queries);
    meet(n);
    PART((long)m * M->heads, a0, a1);
    for (long u = a0; u < a1; u++) {
      const long i = u % m, h = u / m, at = i * W.queries + h * D;
      attend(M, l, h * M->kv_heads / M->heads, P->pages[P->text[i]], queries + at, P->whole[i],
             P->mask ? P->mask + i * P->masked : NULL, P->masked, scores, attended + at);
    }
    meet(n);
    into_stream(M, &layer->out, layer->after_attention, attended, W.queries, m, stream, y, W.hidden, me, n);
    if (!M->parallel)
      for (int i = 0; i < m; i++) normalise(M, layer->before_mlp, stream + i * W.hidden, H, normed + i * W.hidden);
    const long each = M->gated ? 2 : 1;
    BLOCKS_OF(W.mlp, m0, m1);
    for (long k = m0, next; k < m1; k = next) { /* some blocks at once, whose factors stay in the cache */
      next = k + CHUNK / each < m1 ? k + CHUNK / each : m1;
      multiply(&layer->up, normed, W.hidden, m, k * each, next * each, factors, CHUNK * L, 0);
      for (int i = 0; i < m; i++)
        for (long j = k; j < next; j++) {
          const float *of = factors + (i * CHUNK + (j - k) * each) * L;
          store(inner + i * W.mlp + j * L, M->gated ? activated(M, load(of)) * load(of + L) : activated(M, load(of)));
        }
    }
    meet(n);
    into_stream(M, &layer->down, layer->after_mlp, inner, W.mlp, m, stream, y, W.hidden, me, n);
    if (P->outputs[l])
      for (long i = mine; i < not_mine; i++) memcpy(P->outputs[l] + i * H, stream + i * W.hidden, H * sizeof(float));
  }
  for (int i = 0; i < P->n_logits; i++) normalise(M, M->last, stream + P->wanted[i] * W.hidden, H, x + i * W.hidden);
  BLOCKS_OF(P->n_logits ? M->ids : 0, o0, o1);
  multiply(&M->head, x, W.hidden, P->n_logits, o0, o1, P->logits + o0 * L, up_to(M->ids), 0);
  for (long j = o0 * L; M->logit_cap > 0 && j < o1 * L; j += L)
    for (int i = 0; i < P->n_logits; i++) {
      float *o = P->logits + i * up_to(M->ids) + j;
      store(o, M->logit_cap * hyperbolic_tangent(load(o) / M->logit_cap));
    }
  free(x);
}
void forward(Pass *P, int threads) { together(threads, run_pass, P); }

/* Copy the keys and values of one row of a text over those of another one, in all layers. */
void move(const Model *M, float **pages, int from, int to) {
  for (int u = 0; u < M->layers * M->kv_heads; u++) {
    float *a = pages[from / PAGE] + u * page_part(M), *b = pages[to / PAGE] + u * page_part(M);
    for (int d = 0; d < M->head_size; d++) key_at(M, b, to)[d * L] = key_at(M, a, from)[d * L];
    memcpy(value_at(M, b, to), value_at(M, a, from), M->head_size * sizeof(float));
  }
}
