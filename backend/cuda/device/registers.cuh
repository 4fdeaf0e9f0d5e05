// Registers per thread of a warpgroup, taken from the block's pool or given back to it. PTX ISA, "setmaxnreg".

template <int Registers> TM_FN void tm_setmaxnreg_inc()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> TM_FN void tm_setmaxnreg_dec()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
