/* A software model of the tile registers of AMX, for machines without them and for tests.

   Each function is one instruction. What a processor refuses is refused: a configuration that palette 1 does not have,
   an instruction on tiles that are not configured, shapes that do not match. So is what it would not notice: the use
   of a tile without content. A refusal ends the process with one line on standard error, where a processor would raise
   an exception. Source: "Intel Architecture Instruction Set Extensions Programming Reference", chapter "Intel AMX". */

typedef long long tm_i64;
typedef unsigned char tm_byte;
struct tm_palette { tm_byte palette, start, unused[14]; unsigned short bytes[16]; tm_byte rows[16]; };
struct tm_tile { int bytes, rows, filled; tm_byte row[16][64]; };

extern int snprintf(char *to, unsigned long size, const char *format, ...);
extern long write(int file, const void *from, unsigned long size);
extern void abort(void);
extern void *memcpy(void *to, const void *from, unsigned long size);
extern void *memset(void *to, int value, unsigned long size);
extern int memcmp(const void *a, const void *b, unsigned long size);

static __thread struct tm_tile tm_tiles[8];
static __thread int tm_configured;
tm_i64 tm_sim_tile_counts_1[6]; /* configure, release, zero, load, store, product: since the process began */

static void tm_refuse(const char *instruction, int tile, const char *why)
{
  char line[200];
  const int length = snprintf(line, sizeof line, "taskmap: tile model: %s, tile %d: %s\n", instruction, tile, why);
  if (write(2, line, (unsigned long)length) >= 0) abort();
  abort();
}

static void tm_count(int what) { __atomic_fetch_add(&tm_sim_tile_counts_1[what], 1, __ATOMIC_RELAXED); }

static struct tm_tile *tm_tile_at(const char *instruction, int tile, int read)
{
  if (!tm_configured) tm_refuse(instruction, tile, "the tiles are not configured");
  if (tile < 0 || tile > 7 || !tm_tiles[tile].rows) tm_refuse(instruction, tile, "there is no such tile");
  if (read && !tm_tiles[tile].filled) tm_refuse(instruction, tile, "it has no content");
  return &tm_tiles[tile];
}

void tm_sim_tile_configure_1(const struct tm_palette *p)
{
  static const tm_byte none[14];
  tm_count(0);
  if (p->palette != 1 || p->start || memcmp(p->unused, none, 14)) tm_refuse("configure", -1, "it is not palette 1");
  for (int t = 0; t < 16; t++) {
    const int bytes = p->bytes[t], rows = p->rows[t];
    if (bytes > 64 || rows > 16 || !bytes != !rows || (t > 7 && rows)) tm_refuse("configure", t, "it has no such shape");
    if (t < 8) {
      memset(&tm_tiles[t], 0, sizeof tm_tiles[t]);
      tm_tiles[t].bytes = bytes;
      tm_tiles[t].rows = rows;
    }
  }
  tm_configured = 1;
}

void tm_sim_tile_release_1(void)
{
  tm_count(1);
  tm_configured = 0;
  memset(tm_tiles, 0, sizeof tm_tiles);
}

void tm_sim_tile_zero_1(int tile)
{
  struct tm_tile *const t = tm_tile_at("zero", tile, 0);
  tm_count(2);
  memset(t->row, 0, sizeof t->row);
  t->filled = 1;
}

void tm_sim_tile_load_1(int tile, const void *from, tm_i64 stride)
{
  struct tm_tile *const t = tm_tile_at("load", tile, 0);
  tm_count(3);
  memset(t->row, 0, sizeof t->row);
  for (int i = 0; i < t->rows; i++) memcpy(t->row[i], (const tm_byte *)from + i * stride, (unsigned long)t->bytes);
  t->filled = 1;
}

void tm_sim_tile_store_1(int tile, void *to, tm_i64 stride)
{
  const struct tm_tile *const t = tm_tile_at("store", tile, 1);
  tm_count(4);
  for (int i = 0; i < t->rows; i++) memcpy((tm_byte *)to + i * stride, t->row[i], (unsigned long)t->bytes);
}

static void tm_shapes(const char *name, int tile, const struct tm_tile *c, const struct tm_tile *a, const struct tm_tile *b)
{
  tm_count(5);
  if (c->rows != a->rows || c->bytes != b->bytes || a->bytes != 4 * b->rows || c->bytes % 4)
    tm_refuse(name, tile, "the shapes of the tiles do not match");
}

/* x without a denormal value; `first` is the first magnitude that rounds to a normal number of f32. */
static double tm_flushed(double x, double first) { return x < first && x > -first ? (x < 0 || 1 / x < 0 ? -0.0 : 0.0) : x; }

#define TM_SMALLEST 0x1p-126
#define TM_FIRST (0x1p-126 - 0x1p-151)

static float tm_of_bf16(const tm_byte *at)
{
  const unsigned bits = (unsigned)at[0] << 16 | (unsigned)at[1] << 24;
  float x;
  memcpy(&x, &bits, 4);
  return (float)tm_flushed(x, TM_SMALLEST);
}

static float tm_multiply_add(float total, float x, float y)
{
  return (float)tm_flushed((double)total + (double)x * (double)y, TM_FIRST);
}

void tm_sim_tdpbf16ps_1(int tc, int ta, int tb)
{
  const struct tm_tile *const a = tm_tile_at("tdpbf16ps", ta, 1), *const b = tm_tile_at("tdpbf16ps", tb, 1);
  struct tm_tile *const c = tm_tile_at("tdpbf16ps", tc, 1);
  tm_shapes("tdpbf16ps", tc, c, a, b);
  for (int i = 0; i < c->rows; i++)
    for (int j = 0; j < c->bytes / 4; j++) {
      float sums[2] = {0, 0}, total;
      for (int k = 0; k < a->bytes / 4; k++)
        for (int p = 0; p < 2; p++)
          sums[p] = tm_multiply_add(sums[p], tm_of_bf16(&a->row[i][4 * k + 2 * p]), tm_of_bf16(&b->row[k][4 * j + 2 * p]));
      memcpy(&total, &c->row[i][4 * j], 4);
      total = (float)tm_flushed(total, TM_SMALLEST);
      total = tm_multiply_add(total, tm_multiply_add(sums[0], sums[1], 1), 1);
      memcpy(&c->row[i][4 * j], &total, 4);
    }
}

#define TM_BYTES(name, x, y) \
  void tm_sim_##name##_1(int tc, int ta, int tb) \
  { \
    const struct tm_tile *const a = tm_tile_at(#name, ta, 1), *const b = tm_tile_at(#name, tb, 1); \
    struct tm_tile *const c = tm_tile_at(#name, tc, 1); \
    tm_shapes(#name, tc, c, a, b); \
    for (int i = 0; i < c->rows; i++) \
      for (int j = 0; j < c->bytes / 4; j++) { \
        unsigned total; \
        memcpy(&total, &c->row[i][4 * j], 4); \
        for (int k = 0; k < a->bytes; k++) total += (unsigned)((int)(x)a->row[i][k] * (int)(y)b->row[k / 4][4 * j + k % 4]); \
        memcpy(&c->row[i][4 * j], &total, 4); \
      } \
  }
TM_BYTES(tdpbssd, signed char, signed char)
TM_BYTES(tdpbsud, signed char, unsigned char)
TM_BYTES(tdpbusd, unsigned char, signed char)
TM_BYTES(tdpbuud, unsigned char, unsigned char)
