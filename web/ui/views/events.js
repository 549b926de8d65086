import { html } from '../vendor/preact.js';
import { Heading, State } from '../ui.js';
import { t } from '../words.js';

export const title = 'Events';

export default function View() {
  return html`<${Heading} title=${t('Events')} /><${State} status="loading" />`;
}
