import { html } from '../vendor/preact.js';
import { Heading, State } from '../ui.js';
import { t } from '../words.js';

export const title = 'Node';

export default function View() {
  return html`<${Heading} title=${t('Node')} /><${State} status="loading" />`;
}
