package dht

// noCache is an empty cache. The provider cache of the library grows without a limit with the providers of a popular key; without
// it each query reads a limited sample from the datastore.
type noCache struct{}

func (noCache) Add(_, _ any) bool                { return false }
func (noCache) Get(any) (any, bool)              { return nil, false }
func (noCache) Contains(any) bool                { return false }
func (noCache) Peek(any) (any, bool)             { return nil, false }
func (noCache) Remove(any) bool                  { return false }
func (noCache) RemoveOldest() (_, _ any, _ bool) { return nil, nil, false }
func (noCache) GetOldest() (_, _ any, _ bool)    { return nil, nil, false }
func (noCache) Keys() []any                      { return nil }
func (noCache) Len() int                         { return 0 }
func (noCache) Purge()                           {}
func (noCache) Resize(int) int                   { return 0 }
